// What Linux does otherwise than ns-3's DCTCP and proportional rate reduction.
#pragma once

#include "ns3/tcp-dctcp.h"
#include "ns3/tcp-recovery-ops.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace closloop {

// How far a flow used its window lately: tcp_cwnd_validate() in net/ipv4/tcp_output.c.
struct WindowUse {
    bool limited = false;
    uint32_t most_bytes = 0;
    ns3::SequenceNumber32 until{0};
};

// ns-3's DCTCP with four rules of Linux': a window that is not used does not grow, none is below
// two segments, a loss halves it, and the share of marked bytes is estimated from the first
// acknowledgement on, before a mark is answered (dctcp_update_alpha in net/ipv4/tcp_dctcp.c).
class LinuxDctcp : public ns3::TcpDctcp {
  public:
    static ns3::TypeId GetTypeId() {
        static ns3::TypeId id = ns3::TypeId("closloop::LinuxDctcp")
                                    .SetParent<ns3::TcpDctcp>()
                                    .AddConstructor<LinuxDctcp>();
        return id;
    }
    LinuxDctcp() = default;
    LinuxDctcp(const LinuxDctcp& other) : TcpDctcp(other) {} // a fork's window is its own

    void Watch(const WindowUse* use) { use_ = use; }

    ns3::Ptr<ns3::TcpCongestionOps> Fork() override { return ns3::CopyObject<LinuxDctcp>(this); }

    // An acknowledgement of `segments` that were not before; `next` is what will be sent next.
    void Acknowledged(ns3::SequenceNumber32 ack, uint32_t segments, bool marked,
                      ns3::SequenceNumber32 next) {
        delivered_ += segments;
        delivered_marked_ += marked ? segments : 0;
        if (ack < window_end_) {
            return;
        }
        alpha_ -= alpha_ >> SHIFT_G != 0 ? alpha_ >> SHIFT_G : alpha_;
        if (delivered_marked_ > 0) {
            uint32_t share = (delivered_marked_ << (10 - SHIFT_G)) / std::max(1U, delivered_);
            alpha_ = std::min(alpha_ + share, 1024U);
        }
        delivered_ = delivered_marked_ = 0;
        window_end_ = next;
    }

    void PktsAcked(ns3::Ptr<ns3::TcpSocketState>, uint32_t, const ns3::Time&) override {}

    void IncreaseWindow(ns3::Ptr<ns3::TcpSocketState> tcb, uint32_t segments) override {
        bool slow_start = tcb->m_cWnd < tcb->m_ssThresh;
        if (use_ == nullptr || use_->limited ||
            (slow_start && tcb->m_cWnd < 2 * use_->most_bytes)) {
            TcpDctcp::IncreaseWindow(tcb, segments);
        }
    }

    uint32_t GetSsThresh(ns3::Ptr<const ns3::TcpSocketState> tcb, uint32_t) override {
        bool lost = tcb->m_congState == ns3::TcpSocketState::CA_RECOVERY ||
                    tcb->m_congState == ns3::TcpSocketState::CA_LOSS;
        uint32_t window = tcb->m_cWnd.Get();
        auto cut = static_cast<uint32_t>(uint64_t{window} * alpha_ >> 11);
        uint32_t wanted = lost ? window / 2 : window - cut;
        return std::max(wanted, 2 * tcb->m_segmentSize);
    }

  private:
    static constexpr int SHIFT_G = 4;

    const WindowUse* use_ = nullptr;
    uint32_t alpha_ = 1024; // of 1024
    uint32_t delivered_ = 0, delivered_marked_ = 0;
    ns3::SequenceNumber32 window_end_{1};
};

// Proportional rate reduction: tcp_cwnd_reduction() in net/ipv4/tcp_input.c. ns-3's counts the
// first acknowledgement twice, and may leave a window of one segment, whose acknowledgement the
// receiver delays for longer than a data centre's minimum RTO.
class LinuxReduction : public ns3::TcpRecoveryOps {
  public:
    static ns3::TypeId GetTypeId() {
        static ns3::TypeId id = ns3::TypeId("closloop::LinuxReduction")
                                    .SetParent<ns3::TcpRecoveryOps>()
                                    .AddConstructor<LinuxReduction>();
        return id;
    }
    LinuxReduction() = default;
    LinuxReduction(const LinuxReduction& other) : TcpRecoveryOps(other) {}

    std::string GetName() const override { return "LinuxReduction"; }

    ns3::Ptr<ns3::TcpRecoveryOps> Fork() override { return ns3::CopyObject<LinuxReduction>(this); }

    void EnterRecovery(ns3::Ptr<ns3::TcpSocketState> tcb, uint32_t, uint32_t,
                       uint32_t delivered) override {
        prior_ = std::max<int64_t>(tcb->m_cWnd.Get(), 1);
        delivered_ = sent_ = 0;
        // After a mark the acknowledgement that told of it comes to DoRecovery by itself.
        if (tcb->m_congState == ns3::TcpSocketState::CA_RECOVERY) {
            DoRecovery(tcb, delivered, true);
        }
    }

    void DoRecovery(ns3::Ptr<ns3::TcpSocketState> tcb, uint32_t delivered,
                    bool is_duplicate) override {
        int64_t segment = tcb->m_segmentSize, in_flight = tcb->m_bytesInFlight.Get();
        int64_t target = tcb->m_ssThresh.Get();
        delivered_ += delivered;
        int64_t may_send;
        if (target < in_flight) {
            may_send = (target * delivered_ + prior_ - 1) / prior_ - sent_;
        } else {
            may_send = std::max<int64_t>(delivered_ - sent_, delivered);
            may_send += is_duplicate ? 0 : segment;
            may_send = std::min(may_send, target - in_flight);
        }
        may_send = std::max(may_send, sent_ > 0 ? 0 : segment);
        tcb->m_cWnd = static_cast<uint32_t>(in_flight + may_send);
        tcb->m_cWndInfl = tcb->m_cWnd;
    }

    void ExitRecovery(ns3::Ptr<ns3::TcpSocketState> tcb) override {
        tcb->m_cWndInfl = tcb->m_ssThresh.Get();
    }

    void UpdateBytesSent(uint32_t bytes) override { sent_ += bytes; }

  private:
    int64_t prior_ = 1, delivered_ = 0, sent_ = 0;
};

} // namespace closloop
