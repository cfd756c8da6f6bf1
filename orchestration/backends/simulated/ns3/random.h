// Random numbers of our own: ns-3's streams are numbered by the order in which objects are made.
#pragma once

#include <cstdint>

namespace closloop {

// The finaliser of splitmix64: every bit of the result depends on every bit of `x`.
inline uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// splitmix64: a stream of its own for each seed.
class Random {
  public:
    explicit Random(uint64_t seed = 0) : state_(Mix(seed + 0x9e3779b97f4a7c15ULL)) {}

    uint32_t Next32() {
        state_ += 0x9e3779b97f4a7c15ULL;
        return static_cast<uint32_t>(Mix(state_) >> 32);
    }

  private:
    uint64_t state_;
};

} // namespace closloop
