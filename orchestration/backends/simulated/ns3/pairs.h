// The traffic matrix of edge switches, by the definition of the emulated fabric's pairs.c.
#pragma once

#include "wire.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace closloop {

// The number of the edge switch that an address is under: its second octet (inventory/addressing.py).
inline size_t EdgeOf(uint32_t address) { return address >> 16 & 0xff; }

// What one switch counts, if it is asked: the IP bytes of packets that come in from its own hosts for
// hosts of another, by the edge switch of these.
class PairCounter {
  public:
    // A host with this address is connected to the switch.
    void Owns(uint32_t address) { own_ = static_cast<int64_t>(EdgeOf(address)); }

    void Begin(size_t edges) { bytes_.assign(own_ < 0 ? 0 : edges, 0); }
    bool counts() const { return !bytes_.empty(); }

    void Count(uint32_t source, uint32_t destination, int64_t bytes) {
        size_t to = EdgeOf(destination);
        if (EdgeOf(source) == static_cast<size_t>(own_) && to != static_cast<size_t>(own_)) {
            bytes_.at(to) += bytes;
        }
    }

    int64_t own() const { return own_; } // below 0: no host is connected
    const Ints& bytes() const { return bytes_; }

  private:
    int64_t own_ = -1;
    Ints bytes_; // by edge switch; empty unless it counts
};

// The bytes so far by edge switch and, for each, by the receiver's, in the order of their numbers.
// The first time begins to count. A fabric has null in place of a switch where there is a host.
template <class Switches> Ints ReadPairs(const Switches& switches, size_t edges) {
    Ints all(edges * edges, 0);
    for (const auto& one : switches) {
        if (!one || one->pairs().own() < 0) {
            continue;
        }
        PairCounter& pairs = one->pairs();
        if (!pairs.counts()) {
            pairs.Begin(edges);
        }
        std::copy(pairs.bytes().begin(), pairs.bytes().end(),
                  all.begin() + pairs.own() * static_cast<int64_t>(edges));
    }
    return all;
}

} // namespace closloop
