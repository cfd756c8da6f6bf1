// The path choices of all switches of a fabric: made from a BUILD request, set and read together.
#pragma once

#include "balancing.h"
#include "path_choice.h"
#include "wire.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace closloop {

template <class Port> class Choices {
  public:
    // Reads the next arrays: the rules, then a flowlet timeout and a tier for each device, of which
    // `is_switch` says what it is.
    Choices(Request& request, const Ints& is_switch, int64_t seed) : rules_(request.Next()) {
        Ints timeout_ns = request.Next(), tier = request.Next();
        for (size_t i = 0; i < is_switch.size(); ++i) {
            of_.push_back(nullptr);
            if (is_switch[i] == 0) {
                continue;
            }
            if (rules_.kind != Kind::ECMP) {
                of_[i] = std::make_unique<PathChoice<Port>>(
                    rules_, static_cast<uint64_t>(seed), switches_.size(), timeout_ns[i]);
                of_[i]->SetTier(rules_.is_conga() ? static_cast<size_t>(tier[i]) : 0);
            }
            switches_.push_back(of_[i].get());
        }
    }

    // Of a device; null if it never chooses.
    PathChoice<Port>* of(size_t device) const { return of_[device].get(); }

    // Lets a port estimate its link's load if anybody asks.
    void Prepare(Port& port, int64_t rate_bps) const {
        if (rules_.is_conga()) {
            port.load().Set(rate_bps, rules_.dre_time_ns);
        }
    }

    // Tells switches of their partners: rows of switch, target's number, partner.
    template <class Switches> void Introduce(const Ints& rows, const Switches& switches) {
        for (size_t at = 0; at + 2 < rows.size(); at += 3) {
            auto device = static_cast<size_t>(rows[at]), target = static_cast<size_t>(rows[at + 1]);
            of_.at(device)->SetPartner(target, rows[at + 2], switches[device]->paths(target));
        }
    }

    // New timeouts of switches, by their places among all; then five numbers a switch.
    Ints Exchange(const Ints& places, const Ints& timeouts_ns, int64_t now_ns) {
        for (size_t i = 0; i < places.size(); ++i) {
            if (PathChoice<Port>* choice = switches_.at(static_cast<size_t>(places[i]))) {
                choice->SetTimeout(timeouts_ns.at(i));
            }
        }
        Ints all;
        for (const PathChoice<Port>* choice : switches_) {
            if (choice == nullptr) {
                all.insert(all.end(), {0, 0, 0, 0, 0});
                continue;
            }
            const PathCounts& counts = choice->counts;
            all.insert(all.end(), {choice->timeout_ns(), counts.flowlets, counts.reroutes,
                                   choice->EntriesInUse(now_ns), counts.overflows});
        }
        return all;
    }

  private:
    Balancing rules_;
    std::vector<std::unique_ptr<PathChoice<Port>>> of_; // by device
    std::vector<PathChoice<Port>*> switches_;           // in their order
};

} // namespace closloop
