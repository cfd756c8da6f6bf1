// A host's RoCE NIC: a message a flow, as reliable connections of InfiniBand send it.
#pragma once

#include "policies.h"
#include "roce_deciding.h"
#include "roce_flow.h"
#include "roce_line.h"
#include "roce_nic_line.h"
#include "roce_packet.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace closloop::roce {

class Nic : public NicLine {
  public:
    Nic(Line line, const Settings* settings, const Clock* clock, Packets* packets,
        HostCounters* host, std::vector<Flow>* flows, int64_t* ended)
        : NicLine(line, settings, clock, packets), host_(host), flows_(flows), ended_(ended),
          parameters_(settings->parameters), cnp_interval_ps_(settings->cnp_interval_ps),
          deciding_(settings, clock, [this](Flow& flow, int64_t at_ps) { List(flow, at_ps); }) {}

    // New parameters of the policy, then the least time between two of a flow's CNPs in us. They
    // hold from now on, for flows that have begun too.
    void SetParameters(const Ints& parameters) {
        int64_t now_ps = clock().Now();
        TellAll(policies::CL_SETTLE, now_ps);
        parameters_.assign(parameters.begin(), parameters.end() - 1);
        cnp_interval_ps_ = parameters.back() * 1000 * PS_PER_NS;
        TellAll(policies::CL_CHANGED, now_ps);
    }

    Ints parameters() const {
        Ints all(parameters_.begin(), parameters_.end());
        all.push_back(cnp_interval_ps_ / PS_PER_NS / 1000);
        return all;
    }

    int64_t rtt_ns() const { return rtt_ns_; } // the last that a flow has measured, 0 if none

    void Arrive(Packet* packet) override {
        if (!is_cut()) {
            Take(packet);
        }
        packets().Done(packet);
    }

    // Goes back to what is not acknowledged if nothing was for the timeout.
    void Look(Flow& flow) {
        int64_t now_ps = clock().Now();
        if (flow.end_ps >= 0) {
            return;
        }
        if (now_ps - flow.progress_ps >= settings().timeout_ps) {
            if (flow.next > flow.acked && !MayBeAnswered(flow, now_ps)) {
                TimeOut(flow, now_ps);
            }
            flow.progress_ps = now_ps;
        }
        clock().At(flow.progress_ps + settings().timeout_ps, &flow);
    }

  private:
    void Take(Packet* packet) {
        if (packet->kind == Kind::PAUSE) {
            TakePause(*packet);
            return;
        }
        Flow& flow = (*flows_)[packet->flow];
        switch (packet->kind) {
        case Kind::DATA:
            Receive(flow, *packet);
            break;
        case Kind::CNP:
            ++flow.cnps;
            ++host_->cnps;
            Tell(flow, policies::CL_CNP, clock().Now(), 0);
            break;
        case Kind::PROBE:
            Answer(flow, Kind::PROBE_ANSWER, PROBE_BYTES)->probe_ps = packet->probe_ps;
            break;
        case Kind::PROBE_ANSWER:
            Measured(flow, packet->probe_ps);
            Tell(flow, policies::CL_RTT, clock().Now(), 0);
            break;
        default:
            Acknowledged(flow, *packet);
        }
    }

    void TellAll(policies::cl_event_kind event, int64_t now_ps) {
        for (Flow* flow : Unfinished()) {
            Tell(*flow, event, now_ps, 0);
        }
    }

    void Tell(Flow& flow, policies::cl_event_kind event, int64_t now_ps, int64_t bytes,
              const policies::cl_hop* hop = nullptr) {
        uint64_t rate_bps = flow.state.rate_bps;
        uint32_t window_bytes = flow.state.window_bytes;
        if (!deciding_.Hears(flow, event, now_ps)) {
            return;
        }
        auto of = [this](uint32_t packets) {
            return static_cast<uint64_t>(packets * settings().payload_bytes);
        };
        flow.state.now_ns = static_cast<uint64_t>(Ns(now_ps));
        flow.state.event = event;
        flow.state.bytes = static_cast<uint32_t>(bytes);
        flow.state.sent_bytes = of(flow.next);
        flow.state.acked_bytes = of(flow.acked);
        settings().policy->happen(&flow.state, parameters_.data(), hop);
        auto most = static_cast<uint32_t>(settings().window_bytes);
        if (most > 0 && (flow.state.window_bytes == 0 || flow.state.window_bytes > most)) {
            flow.state.window_bytes = most;
        }
        flow.state.rate_bps =
            std::clamp<uint64_t>(flow.state.rate_bps, 1'000'000, flow.state.line_bps);
        deciding_.Take(flow, rate_bps, window_bytes, now_ps);
    }

    void Measured(Flow& flow, int64_t sent_ps) {
        rtt_ns_ = Ns(clock().Now() - sent_ps);
        flow.state.rtt_ns = static_cast<uint64_t>(rtt_ns_);
        flow.rtt_sum_ns += rtt_ns_;
        ++flow.rtts;
    }

    bool MaySend(const Flow& flow) const override {
        return flow.missing.any() ||
               (flow.next < flow.packets &&
                (flow.window_bytes == 0 ||
                 (flow.next - flow.acked) * settings().payload_bytes < flow.window_bytes));
    }

    void CountResent(Flow& flow, int64_t packets) {
        flow.resent += packets;
        host_->resent += packets;
    }

    void GoBack(Flow& flow, uint32_t to) {
        CountResent(flow, flow.next - to);
        flow.next = to;
    }

    // Whether what a flow is about to send may yet bring an acknowledgement. It does not if what was
    // sent again has been lost again. Selective repeat knows that; with go-back-N, of which a
    // receiver asks for a packet once, it shows by an acknowledgement that was asked for and did
    // not come.
    bool MayBeAnswered(const Flow& flow, int64_t now_ps) const {
        if (!flow.listed) {
            return false;
        }
        if (settings().selective) {
            return flow.missing.any() || flow.acked >= flow.missing.judged();
        }
        return flow.asked <= flow.acked || flow.asked_ps + settings().timeout_ps > now_ps;
    }

    void TimeOut(Flow& flow, int64_t now_ps) {
        ++flow.timeouts;
        ++host_->timeouts;
        if (settings().selective) {
            flow.missing.LoseAll(flow.acked, flow.next);
        } else {
            GoBack(flow, flow.acked);
        }
        flow.timed.clear();
        Tell(flow, policies::CL_TIMEOUT, now_ps, 0);
        List(flow, now_ps);
    }

    void Begin(Flow& flow) override {
        Tell(flow, policies::CL_START, flow.start_ps, 0);
        flow.progress_ps = flow.probe_ps = flow.start_ps;
        clock().At(flow.start_ps + settings().timeout_ps, &flow);
        List(flow, flow.start_ps);
    }

    // A packet without payload, which cannot be marked.
    Packet* Small(const Flow& flow, Kind kind, uint32_t bytes) {
        Packet* packet = packets().New();
        packet->switches = 0;
        packet->telemetry = false;
        packet->seen.hops = 0;
        packet->conga = {};
        packet->kind = kind;
        packet->klass = flow.klass;
        packet->capable = packet->marked = packet->asks = false;
        packet->flow = flow.number;
        packet->psn = 0;
        packet->payload_bytes = 0;
        packet->bytes = bytes;
        return packet;
    }

    Packet* NextPacket(Flow& flow, int64_t now_ps) override {
        int64_t interval_ps = settings().probe_interval_ps;
        // at a low rate, data goes between two probes
        if (interval_ps > 0 && !flow.probed && now_ps - flow.probe_ps >= interval_ps) {
            flow.probed = true;
            flow.probe_ps = now_ps;
            ++flow.probes;
            Packet* probe = Small(flow, Kind::PROBE, PROBE_BYTES);
            probe->probe_ps = now_ps;
            return probe;
        }
        flow.probed = false;
        return Data(flow, now_ps);
    }

    Packet* Data(Flow& flow, int64_t now_ps) {
        bool again = flow.missing.any();
        uint32_t psn = again ? flow.missing.next() : flow.next;
        Packet* packet = Small(flow, Kind::DATA, 0);
        bool last = psn + 1 == flow.packets;
        packet->capable = settings().hears_marks;
        packet->telemetry = settings().policy->telemetry != 0;
        packet->seen.path = 0;
        packet->psn = psn;
        packet->asks = last || (psn + 1) % settings().ack_every == 0;
        packet->payload_bytes = static_cast<uint32_t>(
            last ? flow.size_bytes - psn * settings().payload_bytes : settings().payload_bytes);
        // payloads are padded to words of four bytes
        packet->bytes = HEADER_BYTES + (packet->payload_bytes + 3) / 4 * 4 + TelemetryBytes();
        if (again) {
            flow.missing.Sent();
            packet->asks |= !flow.missing.any();
        }
        // a window that closes before anybody was asked would never open
        flow.asked = std::min(flow.asked, psn);
        packet->asks |= flow.window_bytes > 0 && flow.asked <= flow.acked &&
                        (psn + 1 - flow.acked) * settings().payload_bytes >= flow.window_bytes;
        if (packet->asks) {
            flow.asked_ps = flow.asked <= flow.acked ? now_ps : flow.asked_ps;
            flow.asked = psn + 1;
        }
        if (again) {
            CountResent(flow, 1);
        } else {
            ++flow.next;
            if (packet->asks) {
                flow.timed.emplace_back(psn, now_ps);
            }
        }
        if (flow.sent_ps < 0) {
            flow.sent_ps = now_ps;
        }
        ++flow.sent;
        Tell(flow, policies::CL_TX, now_ps, packet->bytes);
        return packet;
    }

    uint32_t TelemetryBytes() const {
        return settings().policy->telemetry != 0 ? Telemetry::BYTES : 0;
    }

    // Answers the sender.
    Packet* Answer(const Flow& flow, Kind kind, uint32_t bytes) {
        Packet* packet = Small(flow, kind, bytes);
        SendControl(packet);
        return packet;
    }

    // Acknowledges all before what is expected, with the telemetry of the packet that asked.
    void Acknowledge(const Flow& flow, const Telemetry& seen) {
        Packet* packet = Answer(flow, Kind::ACK, ACK_BYTES + TelemetryBytes());
        packet->psn = flow.expected - 1;
        if (TelemetryBytes() > 0) {
            packet->seen = seen;
        }
    }

    // The receiver's side. What comes too early is thrown away, and what is missing asked for once;
    // or it is held, and named each time.
    void Receive(Flow& flow, const Packet& packet) {
        int64_t now_ps = clock().Now();
        ++host_->received;
        if (packet.marked) {
            ++flow.marks;
            if (flow.cnp_ps < 0 || now_ps - flow.cnp_ps >= cnp_interval_ps_) {
                flow.cnp_ps = now_ps;
                Answer(flow, Kind::CNP, CNP_BYTES);
            }
        }
        if (packet.psn > flow.expected) {
            ++host_->out_of_order;
            ReceiveEarly(flow, packet.psn);
            return;
        }
        // with something held behind it, the sender waits for news of what it sent again
        bool asks = packet.asks || flow.early.any(flow.expected);
        if (packet.psn == flow.expected) {
            flow.expected = flow.early.After(packet.psn);
            flow.told_missing = false;
        }
        if (asks) {
            Acknowledge(flow, packet.seen);
        }
    }

    void ReceiveEarly(Flow& flow, uint32_t psn) {
        if (settings().selective) {
            flow.early.Add(psn);
            Packet* nack = Answer(flow, Kind::NACK, SELECTIVE_NACK_BYTES);
            nack->psn = flow.expected;
            nack->arrived = psn;
        } else if (!flow.told_missing) {
            flow.told_missing = true;
            Answer(flow, Kind::NACK, ACK_BYTES)->psn = flow.expected;
        }
    }

    // The sender's side: `psn` and all before it have arrived, or, with a NACK, all before it.
    void Acknowledged(Flow& flow, const Packet& packet) {
        if (flow.end_ps >= 0) {
            return;
        }
        int64_t now_ps = clock().Now();
        bool nack = packet.kind == Kind::NACK, loss = nack;
        uint32_t up_to = nack ? packet.psn : packet.psn + 1;
        int64_t newly = up_to > flow.acked ? up_to - flow.acked : 0;
        if (newly > 0) {
            flow.acked = up_to;
            flow.progress_ps = now_ps;
        }
        flow.state.rtt_ns = 0;
        flow.state.switches = packet.switches;
        flow.state.hops = packet.seen.hops;
        if (nack) {
            ++flow.naks;
            if (settings().selective) {
                loss = packet.arrived < flow.next && flow.missing.Arrived(packet.arrived, flow.acked);
            } else if (flow.next > up_to) {
                GoBack(flow, std::max(up_to, flow.acked));
            }
            flow.timed.clear();
        } else {
            TimeRoundTrip(flow, packet.psn);
            flow.missing.Acked(flow.acked);
        }
        flow.next = std::max(flow.next, flow.acked);
        Tell(flow, loss ? policies::CL_NACK : policies::CL_ACK, now_ps,
             newly * settings().payload_bytes, packet.seen.hop.data());
        if (flow.acked == flow.packets) {
            flow.end_ps = now_ps;
            ++*ended_;
        } else {
            List(flow, now_ps);
        }
    }

    // Lets the flow's round trip be that of a packet, if it was timed.
    void TimeRoundTrip(Flow& flow, uint32_t psn) {
        for (; !flow.timed.empty() && flow.timed.front().first <= psn; flow.timed.pop_front()) {
            if (flow.timed.front().first == psn) {
                Measured(flow, flow.timed.front().second);
            }
        }
    }

    HostCounters* host_;
    std::vector<Flow>* flows_;
    int64_t* ended_;
    int64_t rtt_ns_ = 0;
    std::vector<uint32_t> parameters_; // of its flows' policy
    int64_t cnp_interval_ps_;          // of one flow's CNPs, which it sends as receiver
    Deciding deciding_;
};

inline void Flow::Notify() { source->Look(*this); }

} // namespace closloop::roce
