// A link's rate as Linux' tbf keeps it: a bucket of one frame and a little more.
#pragma once

#include <algorithm>
#include <cstdint>

namespace closloop {

// Times in ns; tokens in ps, so that 100 Gbit/s is exact.
class Shaper {
  public:
    Shaper(int64_t rate_bps, int64_t bucket_bytes, int64_t framing_bytes)
        : rate_bps_(rate_bps), framing_bytes_(framing_bytes), full_ps_(Cost(bucket_bytes)),
          tokens_ps_(full_ps_) {}

    // Takes the tokens of a frame and returns 0, or returns the ns until there are enough.
    int64_t Take(int64_t frame_bytes, int64_t now_ns) {
        int64_t gained_ps = std::min(now_ns - last_ns_, full_ps_ / 1000 + 1) * 1000;
        int64_t tokens_ps = std::min(full_ps_, tokens_ps_ + gained_ps) - Cost(frame_bytes);
        if (tokens_ps < 0) {
            return (-tokens_ps + 999) / 1000;
        }
        tokens_ps_ = tokens_ps;
        last_ns_ = now_ns;
        return 0;
    }

  private:
    int64_t Cost(int64_t frame_bytes) const {
        return (frame_bytes + framing_bytes_) * 8'000'000'000'000LL / rate_bps_;
    }

    int64_t rate_bps_, framing_bytes_, full_ps_, tokens_ps_;
    int64_t last_ns_ = 0;
};

} // namespace closloop
