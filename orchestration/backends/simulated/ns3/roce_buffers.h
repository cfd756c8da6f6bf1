// The shared buffers of all switches, with the watchdog of their pauses: built, and read.
#pragma once

#include "roce_buffer.h"
#include "roce_flow.h"
#include "roce_port.h"
#include "roce_switch.h"
#include "roce_watchdog.h"
#include "wire.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace closloop::roce {

// A queue: its port and class.
using QueuePlace = std::pair<Port*, size_t>;

class SharedBuffers {
  public:
    // Reads what the request says of them. Without `switch` in the testbed it says nothing.
    void Build(Request& request, const std::vector<std::unique_ptr<Switch>>& switches,
               const std::vector<std::unique_ptr<Port>>& ports, Settings& nics,
               const Clock* clock) {
        enum Own : size_t { XOFF, XON_OFFSET, QUANTA, DETECT_NS, RESTORE_NS, ACTION };
        Ints own = request.Next();
        settings_.alpha = request.Next();
        settings_.lossless = request.Next();
        settings_.priority = request.Next();
        Ints pool = request.Next(), headroom = request.Next();
        if (own.empty()) {
            return;
        }
        settings_.xoff_bytes = own.at(XOFF);
        settings_.xon_offset_bytes = own.at(XON_OFFSET);
        settings_.quanta = static_cast<uint16_t>(own.at(QUANTA));
        settings_.detect_ps = own.at(DETECT_NS) * PS_PER_NS;
        settings_.restore_ps = own.at(RESTORE_NS) * PS_PER_NS;
        settings_.action = own.at(ACTION);
        std::copy(settings_.priority.begin(), settings_.priority.end(), nics.priority.begin());
        watchdog_ = settings_.detect_ps > 0 ? std::make_unique<Watchdog>(&settings_, clock)
                                          : nullptr;
        std::unordered_map<const Switch*, SharedBuffer*> buffer_of;
        for (size_t i = 0; i < switches.size(); ++i) {
            if (switches[i]) {
                buffers_.push_back(
                    std::make_unique<SharedBuffer>(&settings_, pool[i], clock));
                buffer_of[switches[i].get()] = buffers_.back().get();
            }
        }
        for (size_t i = 0; i < ports.size(); ++i) {
            if (ports[i]) {
                ports[i]->Share(buffer_of.at(&ports[i]->owner()), headroom[i]);
                if (watchdog_) {
                    watchdog_->Add(ports[i].get());
                }
            }
        }
    }

    // Six numbers a queue of a lossless class, then three a switch.
    Ints Read(const std::vector<QueuePlace>& places) const {
        Ints all;
        for (const auto& [port, klass] : places) {
            const PriorityGroup* group = port->queue(klass).group;
            if (group != nullptr) {
                const PauseTimers& timers = port->timers();
                size_t priority = port->priority(klass);
                all.insert(all.end(),
                           {timers.frames(priority), timers.PausedPs(priority) / PS_PER_NS,
                            group->frames(), group->StoppedPs() / PS_PER_NS,
                            group->shared_bytes + group->headroom_bytes, group->headroom_bytes});
            }
        }
        for (const auto& buffer : buffers_) {
            all.insert(all.end(), {buffer->used_bytes(), buffer->headroom_bytes(),
                                   buffer->lossless_drops()});
        }
        return all;
    }

    Ints Incidents() const { return watchdog_ ? watchdog_->Incidents() : Ints{0}; }

  private:
    BufferSettings settings_;
    std::unique_ptr<Watchdog> watchdog_;                 // null if there is none
    std::vector<std::unique_ptr<SharedBuffer>> buffers_; // of all switches, or none
};

} // namespace closloop::roce
