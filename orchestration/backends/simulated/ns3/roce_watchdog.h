// The watchdog of pauses: finds queues that were stopped for too long, and says who stops them.
#pragma once

#include "roce_packet.h"
#include "roce_port.h"
#include "roce_switch.h"
#include "wire.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace closloop::roce {

class Watchdog;

// One queue, looked at when it may have been stopped for the detection time.
class Watch : public ns3::EventImpl {
  public:
    Watch(Watchdog* dog, Port* port, size_t klass) : dog_(dog), port_(port), klass_(klass) {}

    // A pause begins. A look that is due already finds out about it.
    void Begin();

  private:
    friend class Watchdog;
    void Notify() override;

    Watchdog* dog_;
    Port* port_;
    size_t klass_;
    bool due_ = false, stuck_ = false;
};

// As SONiC's (wiki "PFC Watchdog Design"): a queue that has packets and was stopped for all of the
// detection time is stuck. Depending on the action, pauses are ignored and its packets dropped or
// sent, until no pause has come for the restoration time.
class Watchdog {
  public:
    enum Kind : int64_t { DEADLOCK, STORM, CONGESTION, RESTORED };
    enum Action : int64_t { ALERT, DROP, FORWARD };

    Watchdog(const BufferSettings* settings, const Clock* clock)
        : settings_(settings), clock_(clock) {}

    void Add(Port* port) {
        for (size_t i = 0; i < port->classes(); ++i) {
            port->queue(i).watch = &watches_.emplace_back(this, port, i);
        }
    }

    // How many incidents there were; for each when and what it was, where its circle begins, how
    // many queues wait for each other, and their numbers.
    Ints Incidents() const {
        Ints all{count_};
        all.insert(all.end(), incidents_.begin(), incidents_.end());
        return all;
    }

  private:
    friend class Watch;
    struct Place {
        const Port* port;
        size_t klass;
        bool operator==(const Place& other) const {
            return port == other.port && klass == other.klass;
        }
    };
    using Path = std::vector<Place>;

    void LookAt(Watch& watch, int64_t at_ps) {
        watch.due_ = true;
        clock_->At(at_ps, &watch);
    }

    void Look(Watch& watch) {
        const PauseTimers& timers = watch.port_->timers();
        size_t priority = watch.port_->priority(watch.klass_);
        int64_t now_ps = clock_->Now();
        watch.due_ = false;
        if (watch.stuck_) {
            int64_t end_ps = timers.last_ps(priority) + settings_->restore_ps;
            if (now_ps < end_ps) {
                LookAt(watch, end_ps);
                return;
            }
            Restore(watch);
            if (timers.stopped(priority)) {
                LookAt(watch, now_ps + settings_->detect_ps);
            }
        } else if (timers.stopped(priority)) { // else the next pause begins anew
            int64_t due_ps = timers.since_ps(priority) + settings_->detect_ps;
            if (now_ps < due_ps) {
                LookAt(watch, due_ps);
            } else if (watch.port_->queue(watch.klass_).packets.empty()) {
                LookAt(watch, now_ps + settings_->detect_ps);
            } else {
                Detect(watch);
                LookAt(watch, std::max(now_ps, timers.last_ps(priority) + settings_->restore_ps));
            }
        }
    }

    void Detect(Watch& watch) {
        Path path, seen;
        size_t begin = 0;
        Kind kind = Follow({watch.port_, watch.klass_}, path, seen, begin);
        Report(kind, begin, path);
        watch.stuck_ = true;
        if (settings_->action == ALERT) {
            return;
        }
        Queue& queue = watch.port_->queue(watch.klass_);
        queue.ignores_pauses = true;
        if (settings_->action == DROP) {
            queue.discards = true;
            watch.port_->Discard(watch.klass_);
        }
        watch.port_->Rejoin(watch.klass_);
    }

    void Restore(Watch& watch) {
        Report(RESTORED, 0, {{watch.port_, watch.klass_}});
        Queue& queue = watch.port_->queue(watch.klass_);
        watch.stuck_ = queue.ignores_pauses = queue.discards = false;
        watch.port_->Rejoin(watch.klass_);
    }

    // Who a stopped queue waits for: the peer's buffer, and so the stopped queues in which what came
    // from it is. This ends in a circle; at a NIC, which never has a reason to stop anybody; or at a
    // queue that sends. `path` has the queues up to there, of a circle from `begin` on; `seen` are
    // those that lead to no circle.
    static Kind Follow(Place place, Path& path, Path& seen, size_t& begin) {
        auto before = std::find(path.begin(), path.end(), place);
        if (before != path.end()) {
            begin = static_cast<size_t>(before - path.begin());
            return DEADLOCK;
        }
        if (std::find(seen.begin(), seen.end(), place) != seen.end()) {
            return CONGESTION;
        }
        path.push_back(place);
        seen.push_back(place);
        const auto* in = dynamic_cast<const Port*>(place.port->line().peer());
        if (in == nullptr) {
            return STORM;
        }
        const PriorityGroup* group = in->queue(place.klass).group;
        if (group != nullptr && group->stops()) { // else what lets it go is on its way
            size_t length = path.size();
            for (const Port* out : in->owner().ports()) {
                const Queue& queue = out->queue(place.klass);
                if (queue.stopped && queue.packets.Holds(group)) {
                    Kind kind = Follow({out, place.klass}, path, seen, begin);
                    if (kind != CONGESTION) {
                        return kind;
                    }
                    path.resize(length);
                }
            }
        }
        return CONGESTION;
    }

    void Report(Kind kind, size_t begin, const Path& path) {
        ++count_;
        incidents_.insert(incidents_.end(),
                          {clock_->Now() / PS_PER_NS, kind, static_cast<int64_t>(begin),
                           static_cast<int64_t>(path.size())});
        for (const Place& place : path) {
            incidents_.push_back(place.port->first_queue() + static_cast<int64_t>(place.klass));
        }
    }

    const BufferSettings* settings_;
    const Clock* clock_;
    std::deque<Watch> watches_;
    int64_t count_ = 0;
    Ints incidents_;
};

inline void Watch::Begin() {
    if (!due_) {
        const PauseTimers& timers = port_->timers();
        dog_->LookAt(*this, timers.since_ps(port_->priority(klass_)) + dog_->settings_->detect_ps);
    }
}

inline void Watch::Notify() { dog_->Look(*this); }

inline void Port::Obey(size_t priority) {
    for (size_t i = 0; i < queues_.size(); ++i) {
        if (buffer_ != nullptr && this->priority(i) == priority) {
            if (timers_.stopped(priority) && queues_[i].watch != nullptr) {
                queues_[i].watch->Begin();
            }
            Rejoin(i);
        }
    }
}

} // namespace closloop::roce
