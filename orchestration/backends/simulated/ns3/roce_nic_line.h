// The sending half of a RoCE NIC: its flows take turns on the line, each at its own rate.
#pragma once

#include "roce_flow.h"
#include "roce_line.h"
#include "roce_packet.h"
#include "roce_pause.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <iterator>
#include <queue>
#include <tuple>
#include <vector>

namespace closloop::roce {

class NicLine : public End, public Pauses, private Obeys {
  public:
    NicLine(Line line, const Settings* settings, const Clock* clock, Packets* packets)
        : line_(line), settings_(settings), clock_(clock), packets_(packets),
          timers_(line.rate_bps(), clock, this) {}

    Line& line() { return line_; }
    void SetCut(bool cut) { cut_ = cut; }

    int64_t tx_packets = 0, tx_bytes = 0;

    // Gets a flow to send; in the order of their starts.
    void Post(Flow* flow) {
        flow->rate_bps = static_cast<uint64_t>(line_.rate_bps());
        flow->state.line_bps = flow->state.rate_bps = flow->rate_bps;
        flow->state.payload_bytes = static_cast<uint32_t>(settings_->payload_bytes);
        posted_.push_back(flow);
        if (posted_.size() == 1) {
            WakeAt(flow->start_ps);
        }
    }

    // The rates of all flows that have begun by now and not ended.
    int64_t RatesBps() const {
        uint64_t sum = 0;
        for (size_t i = 0; i < posted_.size() && posted_[i]->start_ps <= clock_->Now(); ++i) {
            sum += posted_[i]->end_ps < 0 ? posted_[i]->rate_bps : 0;
        }
        return static_cast<int64_t>(sum);
    }

    // A pause frame that nothing in this NIC is the reason for.
    void SendPause(uint8_t priorities, uint16_t quanta) override {
        pauses_.Put(PauseFrame(*packets_, priorities, quanta));
        WakeAt(std::max(clock_->Now(), line_.free_ps()));
    }

  protected:
    std::vector<Flow*> Unfinished() const {
        std::vector<Flow*> found;
        std::copy_if(posted_.begin(), posted_.begin() + static_cast<long>(begun_),
                     std::back_inserter(found), [](const Flow* flow) { return flow->end_ps < 0; });
        return found;
    }

    virtual void Begin(Flow& flow) = 0;
    virtual bool MaySend(const Flow& flow) const = 0;
    virtual Packet* NextPacket(Flow& flow, int64_t now_ps) = 0;

    // If a flow has something to send, lets it wait for its time, at least until `not_before_ps`.
    void List(Flow& flow, int64_t not_before_ps) {
        if (flow.listed || !MaySend(flow)) {
            return;
        }
        flow.listed = true;
        flow.next_ps = std::max(flow.next_ps, not_before_ps);
        waiting_.push({flow.next_ps, ++came_, &flow});
        WakeAt(std::max(flow.next_ps, line_.free_ps()));
    }

    // Sends an acknowledgement or the like, which goes before all data.
    void SendControl(Packet* packet) {
        if (timers_.stopped(settings_->priority[packet->klass])) {
            stopped_[packet->klass].control.Put(packet);
            return;
        }
        control_.Put(packet);
        WakeAt(std::max(clock_->Now(), line_.free_ps()));
    }

    void TakePause(const Packet& frame) { timers_.Take(frame); }

    bool is_cut() const { return cut_; }
    const Settings& settings() const { return *settings_; }
    const Clock& clock() const { return *clock_; }
    Packets& packets() { return *packets_; }

  private:
    // A flow that waits for its time; of equal times, the one that came first.
    struct Waiting {
        int64_t at_ps;
        uint64_t came;
        Flow* flow;
        bool operator>(const Waiting& other) const {
            return std::tie(at_ps, came) > std::tie(other.at_ps, other.came);
        }
    };
    // What a class that is stopped could have sent.
    struct Stopped {
        Fifo control;
        std::deque<Flow*> flows;
    };

    // Takes what may not be sent any more out of the turn, and lets what may go to its end.
    void Obey(size_t priority) override {
        for (uint8_t klass = 0; klass < stopped_.size(); ++klass) {
            if (settings_->priority[klass] != priority) {
                continue;
            }
            Stopped& stopped = stopped_[klass];
            if (timers_.stopped(priority)) {
                control_.Move(klass, stopped.control);
                auto stay = std::stable_partition(
                    ready_.begin(), ready_.end(),
                    [klass](const Flow* flow) { return flow->klass != klass; });
                stopped.flows.assign(stay, ready_.end());
                ready_.erase(stay, ready_.end());
            } else {
                stopped.control.Move(klass, control_);
                ready_.insert(ready_.end(), stopped.flows.begin(), stopped.flows.end());
                stopped.flows.clear();
                WakeAt(std::max(clock_->Now(), line_.free_ps()));
            }
        }
    }

    void WakeAt(int64_t at_ps) {
        if (at_ps < due_ps_) {
            due_ps_ = at_ps;
            clock_->At(at_ps, &wake_);
        }
    }

    // The next packet may be due. A call that an earlier one has made needless changes nothing.
    void Wake() {
        int64_t now_ps = clock_->Now();
        if (now_ps >= due_ps_) {
            due_ps_ = NEVER_PS;
        }
        while (begun_ < posted_.size() && posted_[begun_]->start_ps <= now_ps) {
            Begin(*posted_[begun_++]);
        }
        if (line_.free_ps() <= now_ps) {
            Send(now_ps);
        }
        int64_t next_ps = NEVER_PS;
        if (!control_.empty() || !ready_.empty() || !pauses_.empty()) {
            next_ps = line_.free_ps();
        } else if (!waiting_.empty()) {
            next_ps = std::max(waiting_.top().at_ps, line_.free_ps());
        }
        if (begun_ < posted_.size()) {
            next_ps = std::min(next_ps, posted_[begun_]->start_ps);
        }
        if (next_ps != NEVER_PS) {
            WakeAt(next_ps);
        }
    }

    // Sends the next packet, if one is due: acknowledgements and CNPs first, then flows in turn.
    void Send(int64_t now_ps) {
        while (!waiting_.empty() && waiting_.top().at_ps <= now_ps) {
            Flow* flow = waiting_.top().flow;
            bool stopped = timers_.stopped(settings_->priority[flow->klass]);
            (stopped ? stopped_[flow->klass].flows : ready_).push_back(flow);
            waiting_.pop();
        }
        if (!pauses_.empty()) {
            line_.Send(pauses_.Take(), now_ps, *clock_);
            return;
        }
        if (!control_.empty()) {
            Launch(control_.Take(), now_ps);
            return;
        }
        while (!ready_.empty()) {
            Flow& flow = *ready_.front();
            ready_.pop_front();
            flow.listed = false;
            if (MaySend(flow)) { // else it was acknowledged meanwhile
                SendOf(flow, now_ps);
                return;
            }
        }
    }

    // Sends a flow's next packet; the one after it waits as long as the flow's rate says.
    void SendOf(Flow& flow, int64_t now_ps) {
        Packet* packet = NextPacket(flow, now_ps);
        int64_t took_ps = line_.SendingPs(packet->bytes);
        if (flow.rate_bps < flow.state.line_bps) {
            using Wide = unsigned __int128;
            took_ps = static_cast<int64_t>(static_cast<Wide>(took_ps) * flow.state.line_bps /
                                           flow.rate_bps);
        }
        flow.next_ps = now_ps + took_ps;
        Launch(packet, now_ps);
        List(flow, 0);
    }

    void Launch(Packet* packet, int64_t now_ps) {
        ++tx_packets;
        tx_bytes += packet->bytes;
        line_.Send(packet, now_ps, *clock_);
    }

    static constexpr int64_t NEVER_PS = INT64_MAX;

    Line line_;
    const Settings* settings_;
    const Clock* clock_;
    Packets* packets_;
    PauseTimers timers_;
    std::vector<Flow*> posted_;
    size_t begun_ = 0;
    Fifo pauses_, control_;
    std::deque<Flow*> ready_;
    std::array<Stopped, PRIORITIES> stopped_; // by class
    std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
    uint64_t came_ = 0;
    int64_t due_ps_ = NEVER_PS;
    bool cut_ = false;
    Call<NicLine, &NicLine::Wake> wake_{this};
};

} // namespace closloop::roce
