// The sending half of a cable: a packet at a time at the line's rate, in picoseconds.
#pragma once

#include "roce_packet.h"

#include <cstdint>

namespace closloop::roce {

constexpr int64_t PS_PER_NS = 1'000;

// The first whole nanosecond that is not before.
inline int64_t Ns(int64_t ps) { return (ps + PS_PER_NS - 1) / PS_PER_NS; }

class Line {
  public:
    Line(int64_t rate_bps, int64_t delay_ns, int64_t framing_bytes)
        : rate_bps_(rate_bps), framing_bytes_(framing_bytes), delay_ps_(delay_ns * PS_PER_NS) {}

    void SetPeer(End* peer) { peer_ = peer; }
    const End* peer() const { return peer_; }

    int64_t rate_bps() const { return rate_bps_; }
    int64_t framing_bytes() const { return framing_bytes_; }
    int64_t free_ps() const { return free_ps_; }

    // How long a packet takes the line.
    int64_t SendingPs(uint32_t bytes) const {
        return (bytes + framing_bytes_) * 8'000'000'000'000LL / rate_bps_;
    }

    // Sends a packet, at a time when the line is free. Its first bit is at the other end after the
    // cable's delay, and from there it can go on: switches cut through.
    void Send(Packet* packet, int64_t now_ps, const Clock& clock) {
        free_ps_ = now_ps + SendingPs(packet->bytes);
        packet->to = peer_;
        clock.At(now_ps + delay_ps_, packet);
    }

  private:
    int64_t rate_bps_, framing_bytes_, delay_ps_;
    int64_t free_ps_ = 0;
    End* peer_ = nullptr;
};

} // namespace closloop::roce
