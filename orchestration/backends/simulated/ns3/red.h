// Linux RED on the instantaneous queue: what orchestration/core/marking_probability.py describes.
#pragma once

#include "random.h"

#include <algorithm>
#include <cstdint>

namespace closloop {

// Decides which packets are marked, as red_action() in include/net/red.h does with Wlog 0.
class Red {
  public:
    Red(uint64_t seed, int64_t never_bytes) : random_(seed), kmin_(never_bytes), kmax_(never_bytes) {}

    // Takes effect with the next packet. `max_p` is the kernel's 32-bit probability at kmax.
    void Set(int64_t kmin_bytes, int64_t kmax_bytes, int64_t max_p) {
        kmin_ = kmin_bytes;
        kmax_ = kmax_bytes;
        max_p_ = max_p;
        int64_t delta = std::max<int64_t>(1, kmax_ - kmin_);
        step_ = std::max<int64_t>(1, max_p_ / delta);
        since_mark_ = -1;
    }

    // Whether to mark a packet that finds so many bytes waiting.
    bool Marks(int64_t backlog_bytes) {
        if (backlog_bytes < kmin_) {
            since_mark_ = -1;
            return false;
        }
        if (backlog_bytes >= kmax_) {
            since_mark_ = -1;
            return true;
        }
        if (++since_mark_ == 0) {
            Draw();
            return false;
        }
        if ((backlog_bytes - kmin_) * since_mark_ < drawn_) {
            return false;
        }
        since_mark_ = 0;
        Draw();
        return true;
    }

    int64_t kmin() const { return kmin_; }
    int64_t kmax() const { return kmax_; }
    int64_t max_p() const { return max_p_; }

  private:
    void Draw() { drawn_ = random_.Next32() / step_; }

    Random random_;
    int64_t kmin_, kmax_;
    int64_t max_p_ = 0xffffffff;
    int64_t step_ = 0xffffffff;
    int64_t since_mark_ = -1;
    int64_t drawn_ = 0;
};

} // namespace closloop
