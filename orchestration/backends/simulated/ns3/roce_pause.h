// Priority-based flow control (IEEE 802.1Qbb): pause frames, and what a sender has been told.
#pragma once

#include "roce_line.h"
#include "roce_packet.h"

#include "ns3/event-impl.h"

#include <array>
#include <cstdint>

namespace closloop::roce {

constexpr size_t PRIORITIES = 8;
constexpr uint32_t PAUSE_BYTES = 60; // on Ethernet, without its checksum

// How long a line is stopped by so many quanta, of 512 bit times each.
inline int64_t QuantaPs(int64_t quanta, int64_t rate_bps) {
    constexpr int64_t bits = 512, ps_per_s = 1'000'000'000'000;
    return static_cast<int64_t>(static_cast<__int128>(quanta) * bits * ps_per_s / rate_bps);
}

// A frame that stops some priorities, given as bits, or with no quanta lets them go on.
inline Packet* PauseFrame(Packets& packets, uint8_t priorities, uint16_t quanta) {
    Packet* frame = packets.New();
    frame->kind = Kind::PAUSE;
    frame->telemetry = false;
    frame->bytes = PAUSE_BYTES;
    frame->payload_bytes = 0;
    frame->pause = {quanta, priorities};
    return frame;
}

// Who sends pause frames to the other end of its cable.
class Pauses {
  public:
    virtual ~Pauses() = default;
    virtual void SendPause(uint8_t priorities, uint16_t quanta) = 0;
};

// Who is told by such frames.
class Obeys {
  public:
    virtual ~Obeys() = default;
    // The priority has been stopped, or may go on.
    virtual void Obey(size_t priority) = 0;
};

// The pause timers of a port or NIC, one a priority.
class PauseTimers {
  public:
    PauseTimers(int64_t rate_bps, const Clock* clock, Obeys* owner)
        : rate_bps_(rate_bps), clock_(clock), owner_(owner) {
        for (size_t i = 0; i < PRIORITIES; ++i) {
            timers_[i].all = this;
            timers_[i].priority = i;
        }
    }

    bool stopped(size_t priority) const { return timers_[priority].runs; }
    // When it was stopped, and when a frame last said so.
    int64_t since_ps(size_t priority) const { return timers_[priority].since_ps; }
    int64_t last_ps(size_t priority) const { return timers_[priority].last_ps; }
    int64_t frames(size_t priority) const { return timers_[priority].frames; }
    int64_t PausedPs(size_t priority) const {
        const Timer& timer = timers_[priority];
        return timer.paused_ps + (timer.runs ? clock_->Now() - timer.since_ps : 0);
    }

    // Obeys a frame from the peer.
    void Take(const Packet& frame) {
        for (size_t i = 0; i < PRIORITIES; ++i) {
            if ((frame.pause.priorities >> i & 1) != 0) {
                Set(timers_[i], frame.pause.quanta);
            }
        }
    }

  private:
    // As an event it is the end of its time. One that was renewed meanwhile is no end.
    struct Timer : ns3::EventImpl {
        PauseTimers* all;
        size_t priority;
        bool runs = false;
        int64_t since_ps = 0, last_ps = 0, until_ps = 0, paused_ps = 0, frames = 0;

        void Notify() override {
            if (runs && all->clock_->Now() >= until_ps) {
                all->Stop(*this);
            }
        }
    };

    void Set(Timer& timer, int64_t quanta) {
        if (quanta == 0) {
            if (timer.runs) {
                Stop(timer);
            }
            return;
        }
        ++timer.frames;
        timer.last_ps = clock_->Now();
        timer.until_ps = timer.last_ps + QuantaPs(quanta, rate_bps_);
        clock_->At(timer.until_ps, &timer);
        if (!timer.runs) {
            timer.runs = true;
            timer.since_ps = timer.last_ps;
            owner_->Obey(timer.priority);
        }
    }

    void Stop(Timer& timer) {
        timer.paused_ps = PausedPs(timer.priority);
        timer.runs = false;
        owner_->Obey(timer.priority);
    }

    int64_t rate_bps_;
    const Clock* clock_;
    Obeys* owner_;
    std::array<Timer, PRIORITIES> timers_;
};

} // namespace closloop::roce
