// A host's RoCE NIC: a message a flow, as reliable connections of InfiniBand send it.
#pragma once

#include "policies.h"
#include "roce_flow.h"
#include "roce_line.h"
#include "roce_packet.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <queue>
#include <tuple>
#include <vector>

namespace closloop::roce {

class Nic : public End {
  public:
    Nic(Line line, const Settings* settings, const Clock* clock, Packets* packets,
        HostCounters* host, std::vector<Flow>* flows, int64_t* ended)
        : line_(line), settings_(settings), clock_(clock), packets_(packets), host_(host),
          flows_(flows), ended_(ended) {}

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

    void Arrive(Packet* packet) override {
        if (!cut_) {
            Flow& flow = (*flows_)[packet->flow];
            switch (packet->kind) {
            case Kind::DATA:
                Receive(flow, *packet);
                break;
            case Kind::CNP:
                ++flow.cnps;
                Tell(flow, policies::CL_CNP, clock_->Now(), 0);
                break;
            default:
                Acknowledged(flow, *packet);
            }
        }
        packets_->Done(packet);
    }

    // Goes back to what is not acknowledged if nothing was for the timeout.
    void Look(Flow& flow) {
        int64_t now_ps = clock_->Now();
        if (flow.end_ps >= 0) {
            return;
        }
        if (now_ps - flow.progress_ps >= settings_->timeout_ps) {
            if (flow.next > flow.acked && !flow.listed) {
                ++flow.timeouts;
                ++host_->timeouts;
                GoBack(flow, flow.acked);
                Tell(flow, policies::CL_TIMEOUT, now_ps, 0);
                List(flow, now_ps);
            }
            flow.progress_ps = now_ps;
        }
        clock_->At(flow.progress_ps + settings_->timeout_ps, &flow);
    }

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

    // A decision that has not taken effect.
    struct Decision {
        int64_t at_ps;
        uint64_t rate_bps;
        uint32_t window_bytes;
        Flow* flow;
    };

    void Tell(Flow& flow, policies::cl_event_kind event, int64_t now_ps, int64_t bytes,
              const policies::cl_hop* hop = nullptr) {
        uint64_t rate_bps = flow.state.rate_bps;
        uint32_t window_bytes = flow.state.window_bytes;
        if (!Hears(flow, event, now_ps)) {
            return;
        }
        auto of = [this](uint32_t packets) {
            return static_cast<uint64_t>(packets * settings_->payload_bytes);
        };
        flow.state.now_ns = static_cast<uint64_t>(Ns(now_ps));
        flow.state.event = event;
        flow.state.bytes = static_cast<uint32_t>(bytes);
        flow.state.sent_bytes = of(flow.next);
        flow.state.acked_bytes = of(flow.acked);
        settings_->policy->happen(&flow.state, settings_->parameters.data(), hop);
        auto most = static_cast<uint32_t>(settings_->window_bytes);
        if (most > 0 && (flow.state.window_bytes == 0 || flow.state.window_bytes > most)) {
            flow.state.window_bytes = most;
        }
        flow.state.rate_bps =
            std::clamp<uint64_t>(flow.state.rate_bps, 1'000'000, flow.state.line_bps);
        if (settings_->decision_latency_ps == 0 || event == policies::CL_START) {
            flow.rate_bps = flow.state.rate_bps;
            flow.window_bytes = flow.state.window_bytes;
        } else if (flow.state.rate_bps != rate_bps || flow.state.window_bytes != window_bytes) {
            Decide(flow, now_ps);
        }
    }

    int64_t& BusyUntil(Flow& flow) {
        return settings_->decisions == Decisions::SERIAL ? busy_until_ps_ : flow.busy_until_ps;
    }

    // Whether the policy hears of an event, or is busy with another one.
    bool Hears(Flow& flow, policies::cl_event_kind event, int64_t now_ps) {
        return settings_->decision_latency_ps == 0 ||
               settings_->decisions == Decisions::PIPELINED || event == policies::CL_START ||
               now_ps >= BusyUntil(flow);
    }

    // Lets what the policy has answered take effect when it has been decided.
    void Decide(Flow& flow, int64_t now_ps) {
        int64_t at_ps = now_ps + settings_->decision_latency_ps;
        decisions_.push_back({at_ps, flow.state.rate_bps, flow.state.window_bytes, &flow});
        BusyUntil(flow) = at_ps;
        clock_->At(at_ps, &decided_);
    }

    void Decided() {
        while (!decisions_.empty() && decisions_.front().at_ps <= clock_->Now()) {
            Decision made = decisions_.front();
            decisions_.pop_front();
            made.flow->rate_bps = made.rate_bps;
            made.flow->window_bytes = made.window_bytes;
            List(*made.flow, made.at_ps);
        }
    }

    bool MaySend(const Flow& flow) const {
        return flow.next < flow.packets &&
               (flow.window_bytes == 0 ||
                (flow.next - flow.acked) * settings_->payload_bytes < flow.window_bytes);
    }

    void GoBack(Flow& flow, uint32_t to) {
        flow.resent += flow.next - to;
        host_->resent += flow.next - to;
        flow.next = to;
        flow.timed.clear();
    }

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

    void Begin(Flow& flow) {
        Tell(flow, policies::CL_START, flow.start_ps, 0);
        flow.progress_ps = flow.start_ps;
        clock_->At(flow.start_ps + settings_->timeout_ps, &flow);
        List(flow, flow.start_ps);
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
        if (!control_.empty() || !ready_.empty()) {
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
            ready_.push_back(waiting_.top().flow);
            waiting_.pop();
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
                SendData(flow, now_ps);
                return;
            }
        }
    }

    void SendData(Flow& flow, int64_t now_ps) {
        Packet* packet = packets_->New();
        bool last = flow.next + 1 == flow.packets;
        int64_t before = flow.next * settings_->payload_bytes;
        packet->kind = Kind::DATA;
        packet->klass = flow.klass;
        packet->capable = settings_->hears_marks;
        packet->marked = false;
        packet->switches = 0;
        packet->telemetry = settings_->policy->telemetry != 0;
        packet->seen.hops = packet->seen.path = 0;
        packet->flow = flow.number;
        packet->psn = flow.next;
        packet->asks = last || (flow.next + 1) % settings_->ack_every == 0;
        packet->payload_bytes =
            static_cast<uint32_t>(last ? flow.size_bytes - before : settings_->payload_bytes);
        // payloads are padded to words of four bytes
        packet->bytes = HEADER_BYTES + (packet->payload_bytes + 3) / 4 * 4 + TelemetryBytes();
        // a window that closes before anybody was asked would never open
        flow.asked = std::min(flow.asked, flow.next);
        packet->asks |= flow.window_bytes > 0 && flow.asked <= flow.acked &&
                        (flow.next + 1 - flow.acked) * settings_->payload_bytes >=
                            flow.window_bytes;
        if (packet->asks) {
            flow.asked = flow.next + 1;
            flow.timed.emplace_back(flow.next, now_ps);
        }
        if (flow.sent_ps < 0) {
            flow.sent_ps = now_ps;
        }
        ++flow.sent;
        ++flow.next;
        Tell(flow, policies::CL_TX, now_ps, packet->bytes);
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

    uint32_t TelemetryBytes() const {
        return settings_->policy->telemetry != 0 ? Telemetry::BYTES : 0;
    }

    // Answers the sender; an acknowledgement has the telemetry of what it acknowledges.
    void Answer(const Flow& flow, Kind kind, uint32_t psn, const Telemetry* seen = nullptr) {
        Packet* packet = packets_->New();
        packet->switches = 0;
        packet->telemetry = false;
        packet->seen.hops = 0;
        packet->kind = kind;
        packet->klass = flow.klass;
        packet->capable = packet->marked = packet->asks = false;
        packet->flow = flow.number;
        packet->psn = psn;
        packet->payload_bytes = 0;
        packet->bytes = kind == Kind::CNP ? CNP_BYTES : ACK_BYTES;
        if (seen != nullptr && TelemetryBytes() > 0) {
            packet->seen = *seen;
            packet->bytes += TelemetryBytes();
        }
        control_.Put(packet);
        WakeAt(std::max(clock_->Now(), line_.free_ps()));
    }

    // The receiver's side. Data that leave a gap are thrown away, and asked for once.
    void Receive(Flow& flow, const Packet& packet) {
        int64_t now_ps = clock_->Now();
        if (packet.marked) {
            ++flow.marks;
            if (flow.cnp_ps < 0 || now_ps - flow.cnp_ps >= settings_->cnp_interval_ps) {
                flow.cnp_ps = now_ps;
                Answer(flow, Kind::CNP, 0);
            }
        }
        if (packet.psn == flow.expected) {
            ++flow.expected;
            flow.told_missing = false;
            if (packet.asks) {
                Answer(flow, Kind::ACK, packet.psn, &packet.seen);
            }
        } else if (packet.psn > flow.expected) {
            ++host_->out_of_order;
            if (!flow.told_missing) {
                flow.told_missing = true;
                Answer(flow, Kind::NACK, flow.expected);
            }
        } else if (packet.asks) {
            Answer(flow, Kind::ACK, flow.expected - 1, &packet.seen);
        }
    }

    // The sender's side: `psn` and all before it have arrived, or, with a NACK, all before it.
    void Acknowledged(Flow& flow, const Packet& packet) {
        if (flow.end_ps >= 0) {
            return;
        }
        int64_t now_ps = clock_->Now();
        bool missing = packet.kind == Kind::NACK;
        uint32_t up_to = missing ? packet.psn : packet.psn + 1;
        int64_t newly = up_to > flow.acked ? up_to - flow.acked : 0;
        if (newly > 0) {
            flow.acked = up_to;
            flow.progress_ps = now_ps;
        }
        flow.state.rtt_ns = 0;
        flow.state.switches = packet.switches;
        flow.state.hops = packet.seen.hops;
        if (missing) {
            ++flow.naks;
            if (flow.next > up_to) {
                GoBack(flow, std::max(up_to, flow.acked));
            }
            flow.timed.clear();
        }
        for (; !flow.timed.empty() && flow.timed.front().first <= packet.psn;
             flow.timed.pop_front()) {
            if (flow.timed.front().first == packet.psn) {
                flow.state.rtt_ns = static_cast<uint64_t>(Ns(now_ps - flow.timed.front().second));
            }
        }
        flow.next = std::max(flow.next, flow.acked);
        Tell(flow, missing ? policies::CL_NACK : policies::CL_ACK, now_ps,
             newly * settings_->payload_bytes, packet.seen.hop.data());
        if (flow.acked == flow.packets) {
            flow.end_ps = now_ps;
            ++*ended_;
        } else {
            List(flow, now_ps);
        }
    }

    static constexpr int64_t NEVER_PS = INT64_MAX;

    Line line_;
    const Settings* settings_;
    const Clock* clock_;
    Packets* packets_;
    HostCounters* host_;
    std::vector<Flow>* flows_;
    int64_t* ended_;
    std::vector<Flow*> posted_;
    size_t begun_ = 0;
    Fifo control_;
    std::deque<Flow*> ready_;
    std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
    uint64_t came_ = 0;
    int64_t due_ps_ = NEVER_PS;
    bool cut_ = false;
    std::deque<Decision> decisions_;
    int64_t busy_until_ps_ = 0;
    Call<Nic, &Nic::Wake> wake_{this};
    Call<Nic, &Nic::Decided> decided_{this};
};

inline void Flow::Notify() { source->Look(*this); }

} // namespace closloop::roce
