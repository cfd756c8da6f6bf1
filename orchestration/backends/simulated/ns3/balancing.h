// How switches choose among equal-cost ports: the rules of docs/load-balancing.md.
#pragma once

#include "ecmp_hash.h"
#include "random.h"
#include "wire.h"

#include <cstdint>

namespace closloop {

enum class Kind : int64_t { ECMP, SPRAY, FLOWLETS };
enum class RouteBy : int64_t { RANDOM, ROUND_ROBIN, DRILL, CONGA };

// What all switches of a trial have in common.
struct Balancing {
    Kind kind = Kind::ECMP;
    RouteBy route_by = RouteBy::RANDOM;
    uint64_t entries = 0; // of a flowlet table, a power of two
    int64_t dre_time_ns = 0, metric_age_ns = 0;

    Balancing() = default;
    explicit Balancing(const Ints& words)
        : kind(static_cast<Kind>(words.at(0))), route_by(static_cast<RouteBy>(words.at(1))),
          entries(static_cast<uint64_t>(words.at(2))), dre_time_ns(words.at(3)),
          metric_age_ns(words.at(4)) {}

    bool is_conga() const { return kind != Kind::ECMP && route_by == RouteBy::CONGA; }
};

// What is counted of a switch's choices.
struct PathCounts {
    int64_t flowlets = 0, reroutes = 0, overflows = 0;
};

// The draws of one switch: SplitMix64, begun at a place of its own.
class Draws {
  public:
    Draws(uint64_t seed, uint64_t place) : state_(Output(Output(seed) + place)) {}

    // One of `count` numbers from 0; of one, without a draw.
    size_t Among(size_t count) {
        if (count == 1) {
            return 0;
        }
        uint64_t high = Output(state_) >> 32;
        state_ += STEP;
        return static_cast<size_t>(high * count >> 32);
    }

    // The generator's output for a state.
    static uint64_t Output(uint64_t state) { return Mix(state + STEP); }

  private:
    static constexpr uint64_t STEP = 0x9e3779b97f4a7c15ULL;

    uint64_t state_;
};

// By what a flowlet table knows a flow.
inline uint64_t FlowKey(const FiveTuple& tuple) {
    auto number = [](const auto& bytes) {
        uint64_t all = 0;
        for (uint8_t byte : bytes) {
            all = all << 8 | byte;
        }
        return all;
    };
    uint64_t ends = number(tuple.source) << 32 | number(tuple.destination);
    uint64_t ports =
        number(tuple.source_port) << 24 ^ number(tuple.destination_port) << 8 ^ tuple.protocol;
    return Draws::Output(Draws::Output(ends) ^ ports);
}

} // namespace closloop
