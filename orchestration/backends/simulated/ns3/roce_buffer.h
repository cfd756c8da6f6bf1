// A switch's shared buffer: who may enter, and when a peer is told to stop and to go on.
#pragma once

#include "roce_line.h"
#include "roce_packet.h"
#include "roce_pause.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace closloop::roce {

// What the buffers of all switches have in common; vectors are by class.
struct BufferSettings {
    std::vector<int64_t> alpha; // shares of 2^16
    std::vector<int64_t> lossless;
    std::vector<int64_t> priority; // of its pause frames
    int64_t xoff_bytes;            // the limit of lossless classes in place of alpha; 0: none
    int64_t xon_offset_bytes;
    uint16_t quanta;
    int64_t detect_ps, restore_ps; // the watchdog's; 0: there is none
    int64_t action;
};

class SharedBuffer;

// A lossless class of what comes in by one port, as SONiC names it (BUFFER_PG).
class PriorityGroup {
  public:
    PriorityGroup(SharedBuffer* buffer, Pauses* port, uint8_t klass, int64_t room_bytes,
                  int64_t rate_bps)
        : buffer_(buffer), port_(port), klass_(klass), room_bytes_(room_bytes),
          rate_bps_(rate_bps) {}

    uint8_t klass() const { return klass_; }
    bool stops() const { return stops_; } // its peer
    int64_t frames() const { return frames_; }
    int64_t StoppedPs() const;

    // What it holds: of the pool, and beyond its limit in the headroom that is its own.
    int64_t shared_bytes = 0, headroom_bytes = 0;
    int64_t room_bytes() const { return room_bytes_; }

    void Stop();
    void LetGo();

  private:
    void Tell(bool stop);
    void Renew();

    SharedBuffer* buffer_;
    Pauses* port_;
    uint8_t klass_;
    int64_t room_bytes_, rate_bps_;
    bool stops_ = false;
    int64_t since_ps_ = 0, stopped_ps_ = 0, renew_ps_ = 0, frames_ = 0;
    Call<PriorityGroup, &PriorityGroup::Renew> renew_{this};
};

class SharedBuffer {
  public:
    SharedBuffer(const BufferSettings* settings, int64_t pool_bytes, const Clock* clock)
        : settings_(settings), clock_(clock), pool_bytes_(pool_bytes) {}

    const BufferSettings& settings() const { return *settings_; }
    const Clock& clock() const { return *clock_; }
    int64_t used_bytes() const { return shared_bytes_ + headroom_bytes_; }
    int64_t headroom_bytes() const { return headroom_bytes_; }
    int64_t lossless_drops() const { return lossless_drops_; }

    PriorityGroup* AddGroup(Pauses* port, uint8_t klass, int64_t room_bytes, int64_t rate_bps) {
        return &groups_.emplace_back(this, port, klass, room_bytes, rate_bps);
    }

    // A packet wants to wait in a queue that has so many bytes. It counts with the group of the
    // port by which it came, or if that is null, with the queue. False: there is no room for it.
    bool Admit(Packet* packet, PriorityGroup* group, int64_t queue_bytes) {
        packet->group = group;
        int64_t held_bytes = group != nullptr ? group->shared_bytes : queue_bytes;
        if (packet->bytes <= Free() && held_bytes + packet->bytes <= Limit(packet->klass)) {
            shared_bytes_ += packet->bytes;
            if (group != nullptr) {
                group->shared_bytes += packet->bytes;
            }
            return true;
        }
        if (group == nullptr) {
            return false;
        }
        if (!group->stops()) {
            group->Stop();
            stopping_.push_back(group);
        }
        if (group->headroom_bytes + packet->bytes > group->room_bytes()) {
            ++lossless_drops_;
            return false;
        }
        group->headroom_bytes += packet->bytes;
        headroom_bytes_ += packet->bytes;
        return true;
    }

    // A packet that was admitted leaves. The headroom is emptied first.
    void Release(const Packet& packet) {
        int64_t shared_bytes = packet.bytes;
        if (packet.group != nullptr) {
            int64_t from_headroom = std::min(packet.group->headroom_bytes, shared_bytes);
            packet.group->headroom_bytes -= from_headroom;
            headroom_bytes_ -= from_headroom;
            shared_bytes -= from_headroom;
            packet.group->shared_bytes -= shared_bytes;
        }
        shared_bytes_ -= shared_bytes;
        if (!stopping_.empty()) {
            LetGo();
        }
    }

  private:
    int64_t Free() const { return pool_bytes_ - shared_bytes_; }

    // Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
    // IEEE/ACM Transactions on Networking 6(2), 1998, equation 1.
    int64_t Limit(size_t klass) const {
        return settings_->xoff_bytes > 0 && settings_->lossless[klass] != 0
                   ? settings_->xoff_bytes
                   : settings_->alpha[klass] * Free() >> 16;
    }

    // Lets go those that are far enough below their limit, or hold nothing.
    void LetGo() {
        auto may_go = [this](PriorityGroup* group) {
            bool below = group->shared_bytes + settings_->xon_offset_bytes <= Limit(group->klass());
            if (group->headroom_bytes > 0 || (group->shared_bytes > 0 && !below)) {
                return false;
            }
            group->LetGo();
            return true;
        };
        stopping_.erase(std::remove_if(stopping_.begin(), stopping_.end(), may_go),
                        stopping_.end());
    }

    const BufferSettings* settings_;
    const Clock* clock_;
    int64_t pool_bytes_; // without the headroom of all groups
    int64_t shared_bytes_ = 0, headroom_bytes_ = 0, lossless_drops_ = 0;
    std::deque<PriorityGroup> groups_;
    std::vector<PriorityGroup*> stopping_; // their peers
};

inline int64_t PriorityGroup::StoppedPs() const {
    return stopped_ps_ + (stops_ ? buffer_->clock().Now() - since_ps_ : 0);
}

inline void PriorityGroup::Stop() {
    stops_ = true;
    since_ps_ = buffer_->clock().Now();
    Tell(true);
}

inline void PriorityGroup::LetGo() {
    stopped_ps_ = StoppedPs();
    stops_ = false;
    Tell(false);
}

inline void PriorityGroup::Tell(bool stop) {
    const BufferSettings& settings = buffer_->settings();
    auto priority = static_cast<uint8_t>(1 << settings.priority[klass_]);
    port_->SendPause(priority, stop ? settings.quanta : 0);
    if (stop) {
        ++frames_;
        // said again before it runs out
        renew_ps_ = buffer_->clock().Now() + QuantaPs(settings.quanta, rate_bps_) / 2;
        buffer_->clock().At(renew_ps_, &renew_);
    }
}

// An earlier one may happen after its peer was let go, and stopped again.
inline void PriorityGroup::Renew() {
    if (stops_ && buffer_->clock().Now() == renew_ps_) {
        Tell(true);
    }
}

} // namespace closloop::roce
