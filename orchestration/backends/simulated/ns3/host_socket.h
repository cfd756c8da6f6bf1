// ns-3's TCP with what Linux has around it: small queues, cwnd validation, RTTs in ns, quick ACKs.
#pragma once

#include "congestion.h"
#include "host_nic.h"

#include "ns3/rtt-estimator.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-rx-buffer.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/tcp-tx-buffer.h"

#include <algorithm>
#include <cstdint>
#include <functional>

namespace closloop {

// A host's TCP counters, as /proc/net has them.
struct HostCounters {
    int64_t retransmits = 0, timeouts = 0, out_of_order = 0;
    int64_t received = 0; // packets with data
};

class HostSocket : public ns3::TcpSocketBase, public FlowQueue {
  public:
    static ns3::TypeId GetTypeId() {
        static ns3::TypeId id = ns3::TypeId("closloop::HostSocket")
                                    .SetParent<ns3::TcpSocketBase>()
                                    .AddConstructor<HostSocket>();
        return id;
    }
    HostSocket() = default;
    HostSocket(const HostSocket& other)
        : TcpSocketBase(other), FlowQueue(), counters_(other.counters_),
          small_queue_bytes_(other.small_queue_bytes_) {}

    // `small_queue_bytes` is how much of a flow TCP keeps below itself (tcp_limit_output_bytes).
    void Configure(HostCounters* counters, int64_t small_queue_bytes) {
        counters_ = counters;
        small_queue_bytes_ = small_queue_bytes;
    }

    // Is told of each acknowledgement, and how far the window is used.
    void Watch(LinuxDctcp* dctcp) {
        dctcp_ = dctcp;
        dctcp->Watch(&use_);
    }

    int64_t retransmits() const { return retransmits_; }

    // Is called each time that all that was handed over has been acknowledged.
    void OnAllAcknowledged(std::function<void()> then) { all_acknowledged_ = std::move(then); }

    // Takes a packet that is known to be this connection's.
    void Take(ns3::Ptr<ns3::Packet> packet, const ns3::Ipv4Header& header, uint16_t port,
              ns3::Ptr<ns3::Ipv4Interface> interface) {
        counters_->received += HasData(*packet) ? 1 : 0;
        bool marked = header.GetEcn() == ns3::Ipv4Header::ECN_CE;
        if (marked != marked_ && header.GetEcn() != ns3::Ipv4Header::ECN_NotECT) {
            marked_ = marked;
            acknowledge_now_ = true;
        }
        if (m_endPoint != nullptr) {
            ForwardUp(packet, header, port, interface);
        }
    }

  protected:
    ns3::Ptr<ns3::TcpSocketBase> Fork() override { return ns3::CopyObject<HostSocket>(this); }

    uint32_t SendDataPacket(ns3::SequenceNumber32 seq, uint32_t size, bool with_ack) override {
        if (seq < m_tcb->m_highTxMark.Get()) {
            ++retransmits_;
            ++counters_->retransmits;
        }
        uint32_t sent;
        {
            HostNic::Sending sending(this, size + SKB_BYTES);
            sent = TcpSocketBase::SendDataPacket(seq, size, with_ack);
        }
        Validate(seq + sent);
        last_sent_ = ns3::Simulator::Now();
        return sent;
    }

    void SendEmptyPacket(uint8_t flags) override {
        HostNic::Sending sending(this, 0);
        TcpSocketBase::SendEmptyPacket(flags);
    }

    // What is in a buffer goes down at once: it may then be more than small queues allow.
    uint32_t AvailableWindow() const override {
        uint32_t window = TcpSocketBase::AvailableWindow();
        if (m_tcb->m_nextTxSequence.Get() < granted_until_) {
            return window;
        }
        if (held_bytes() > small_queue_bytes_) {
            throttled_ = true;
            return 0;
        }
        return window > 0 && Deferred(window) ? 0 : window;
    }

    void Left() override {
        if (throttled_ && held_bytes() <= small_queue_bytes_) {
            throttled_ = false;
            SendPendingData(m_connected);
        }
    }

    void ReTxTimeout() override {
        if (m_state != CLOSED && m_state != TIME_WAIT && m_state != SYN_SENT &&
            m_txBuffer->Size() > 0) {
            ++counters_->timeouts;
        }
        granted_until_ = m_txBuffer->HeadSequence();
        TcpSocketBase::ReTxTimeout();
    }

    void ReceivedAck(ns3::Ptr<ns3::Packet> packet, const ns3::TcpHeader& header) override {
        ns3::SequenceNumber32 ack = header.GetAckNumber(), head = m_txBuffer->HeadSequence();
        if (ack > head && early_bytes_ == UINT32_MAX) {
            early_bytes_ = m_txBuffer->TailSequence() - ns3::SequenceNumber32(1);
        }
        if (dctcp_ != nullptr) {
            uint32_t mss = m_tcb->m_segmentSize;
            uint32_t newly = ack > head ? (static_cast<uint32_t>(ack - head) + mss - 1) / mss : 0;
            dctcp_->Acknowledged(std::max(ack, head), newly,
                                 (header.GetFlags() & ns3::TcpHeader::ECE) != 0,
                                 m_tcb->m_nextTxSequence);
        }
        bool late = header.HasOption(ns3::TcpOption::SACK) && !IsOutstanding();
        TcpSocketBase::ReceivedAck(packet, late ? WithoutSack(header) : header);
        if (all_acknowledged_ && m_closeOnEmpty && m_txBuffer->Size() == 0) {
            all_acknowledged_();
        }
    }

    // Four repairs of ns-3 3.44. Duplicate ACKs that were counted while the window was being reduced
    // make it stop at an assertion afterwards. It does not look for losses meanwhile at all, where
    // Linux goes from reducing to recovery. And after a timeout it does not count what was
    // acknowledged up to the end of the recovery, so that a window of one segment never grows. The
    // fourth is `WithoutSack`.
    void ProcessAck(const ns3::SequenceNumber32& ack, bool scoreboard_updated, uint32_t delivered,
                    const ns3::SequenceNumber32& old_head, bool received_data) override {
        using State = ns3::TcpSocketState;
        bool after_timeout = m_tcb->m_congState == State::CA_LOSS;
        if (m_tcb->m_congState == State::CA_OPEN) {
            m_dupAckCount = 0;
        } else if (m_tcb->m_congState == State::CA_CWR && scoreboard_updated &&
                   m_dupAckCount + 1 >= m_retxThresh) {
            m_dupAckCount = m_retxThresh - 1;
            m_recoverActive = false;
            m_tcb->m_congState = State::CA_DISORDER;
        }
        TcpSocketBase::ProcessAck(ack, scoreboard_updated, delivered, old_head, received_data);
        if (after_timeout && m_tcb->m_congState == State::CA_OPEN && m_recover > old_head) {
            auto bytes = static_cast<uint32_t>(m_recover - old_head);
            m_congestionControl->IncreaseWindow(m_tcb, (bytes - 1) / m_tcb->m_segmentSize + 1);
        }
    }

    void ReceivedData(ns3::Ptr<ns3::Packet> packet, const ns3::TcpHeader& header) override {
        if (packet->GetSize() > 0 &&
            header.GetSequenceNumber() > m_tcb->m_rxBuffer->NextRxSequence()) {
            ++counters_->out_of_order;
        }
        if (quick_acks_ > 0 || acknowledge_now_) {
            quick_acks_ -= quick_acks_ > 0 ? 1 : 0;
            acknowledge_now_ = false;
            m_delAckCount = m_delAckMaxCount;
        }
        TcpSocketBase::ReceivedData(packet, header);
    }

    // ns-3 would take timestamps, which count milliseconds.
    ns3::Time CalculateRttSample(const ns3::TcpHeader& header,
                                 const ns3::RttHistory& sent) override {
        bool covers = header.GetAckNumber() >= sent.seq + ns3::SequenceNumber32(sent.count);
        return covers && !sent.retx ? ns3::Simulator::Now() - sent.time : ns3::Time(0);
    }

  private:
    // What Linux counts for a packet's memory besides its payload.
    static constexpr int64_t SKB_BYTES = 832;
    // It keeps so much of a stream in one buffer, in whole segments, and sends no more at once. Of
    // what is handed over before the first acknowledgement it is half of the handshake's window,
    // which is not scaled (tcp_bound_to_half_wnd in include/net/tcp.h).
    static constexpr uint32_t SKB_DATA_BYTES = 65'215, EARLY_SKB_DATA_BYTES = 65'535 / 2;
    // The receiver acknowledges the first packets of a connection one by one (TCP_MAX_QUICKACKS).
    static constexpr int QUICK_ACKS = 16;

    // Whether something that was sent is not acknowledged.
    bool IsOutstanding() const {
        return m_txBuffer->Size() > 0 && m_txBuffer->HeadSequence() < m_tcb->m_highTxMark.Get();
    }

    // An acknowledgement that others overtook may have SACK blocks when nothing is outstanding any
    // more. ns-3 then takes the first of no packets (TcpTxBuffer::Update).
    static ns3::TcpHeader WithoutSack(const ns3::TcpHeader& header) {
        ns3::TcpHeader plain;
        plain.SetSourcePort(header.GetSourcePort());
        plain.SetDestinationPort(header.GetDestinationPort());
        plain.SetSequenceNumber(header.GetSequenceNumber());
        plain.SetAckNumber(header.GetAckNumber());
        plain.SetFlags(header.GetFlags());
        plain.SetWindowSize(header.GetWindowSize());
        plain.SetUrgentPointer(header.GetUrgentPointer());
        for (const auto& option : header.GetOptionList()) {
            if (option->GetKind() != ns3::TcpOption::SACK) {
                plain.AppendOption(option);
            }
        }
        return plain;
    }

    // Whether there is more than TCP's header, whose length in words is in its byte 12.
    static bool HasData(const ns3::Packet& segment) {
        uint8_t head[13] = {};
        segment.CopyData(head, sizeof head);
        return segment.GetSize() > 4U * (head[12] >> 4);
    }

    // tcp_write_xmit() in net/ipv4/tcp_output.c: a buffer's segments are sent together, those of the
    // next with it if the window has room (tcp_grow_skb). By tcp_tso_should_defer() less than a
    // third of the window is not sent while an acknowledgement that allows more is near.
    bool Deferred(uint32_t window) const {
        ns3::Time now = ns3::Simulator::Now();
        ns3::SequenceNumber32 next = m_tcb->m_nextTxSequence.Get();
        auto sent = static_cast<uint32_t>(next - ns3::SequenceNumber32(1));
        auto unsent = static_cast<uint32_t>(m_txBuffer->TailSequence() - next);
        bool early = sent < early_bytes_;
        uint32_t buffer = early ? EARLY_SKB_DATA_BYTES : SKB_DATA_BYTES;
        buffer -= buffer % m_tcb->m_segmentSize;
        uint32_t in_buffer =
            std::min(buffer - (early ? sent : sent - early_bytes_) % buffer, unsent);
        bool last_buffer = m_closeOnEmpty && in_buffer == unsent;
        if (!m_history.empty() && now - last_sent_ <= ns3::MilliSeconds(1) &&
            m_tcb->m_congState < ns3::TcpSocketState::CA_RECOVERY && !last_buffer &&
            window < in_buffer && in_buffer > m_tcb->m_segmentSize &&
            window < std::min<uint32_t>(m_rWnd, m_tcb->m_cWnd) / 3) {
            ns3::Time rtt = m_rtt->GetEstimate();
            ns3::Time acknowledgement = m_history.front().time + rtt - now;
            if (acknowledgement <= ns3::Min(rtt / 2, ns3::MilliSeconds(1))) {
                return true;
            }
        }
        uint32_t together = std::min({window, in_buffer + buffer, SKB_DATA_BYTES});
        granted_until_ = next + std::max(together, m_tcb->m_segmentSize);
        return false;
    }

    void Validate(ns3::SequenceNumber32 next) {
        uint32_t in_flight = BytesInFlight();
        bool limited = in_flight + m_tcb->m_segmentSize > m_tcb->m_cWnd;
        if (m_txBuffer->HeadSequence() >= use_.until || limited ||
            (!use_.limited && in_flight > use_.most_bytes)) {
            use_ = {limited, in_flight, next};
        }
    }

    HostCounters* counters_ = nullptr;
    int64_t small_queue_bytes_ = 0;
    mutable bool throttled_ = false;
    mutable ns3::SequenceNumber32 granted_until_{0}; // the end of what goes down together
    ns3::Time last_sent_{0};
    int64_t retransmits_ = 0;
    int quick_acks_ = QUICK_ACKS;
    // Linux' DCTCP acknowledges at once when marks begin or end (dctcp_ece_ack_update).
    bool marked_ = false, acknowledge_now_ = false;
    uint32_t early_bytes_ = UINT32_MAX; // handed over before the first acknowledgement, once known
    WindowUse use_;
    LinuxDctcp* dctcp_ = nullptr;
    std::function<void()> all_acknowledged_;
};

} // namespace closloop
