// Linux' multipath hash of the five-tuple, so that a flow takes the path that it takes there.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace closloop {

// A connection as its packets carry it: addresses and ports in the order of their bytes.
struct FiveTuple {
    std::array<uint8_t, 4> source, destination;
    std::array<uint8_t, 2> source_port, destination_port;
    uint8_t protocol;
};

// Policy 3 of fib_multipath_hash() in net/ipv4/route.c with a seed of one's own: SipHash-2-4 of the
// dissected fields (net/core/flow_dissector.c), alike in both directions, then Jenkins' hash.
class EcmpHash {
  public:
    explicit EcmpHash(uint32_t seed) : key_(uint64_t{seed} << 32 | seed) {}

    // A number of 31 bits.
    uint32_t operator()(FiveTuple tuple) const {
        if (Word(tuple.destination) < Word(tuple.source)) {
            std::swap(tuple.source, tuple.destination);
        }
        if (Half(tuple.destination_port) < Half(tuple.source_port)) {
            std::swap(tuple.source_port, tuple.destination_port);
        }
        // struct flow_keys from `basic` on, with what is not hashed left 0
        std::array<uint8_t, 48> keys{};
        keys[2] = tuple.protocol;
        std::memcpy(&keys[28], tuple.source_port.data(), 2);
        std::memcpy(&keys[30], tuple.destination_port.data(), 2);
        std::memcpy(&keys[36], tuple.source.data(), 4);
        std::memcpy(&keys[40], tuple.destination.data(), 4);
        auto hash = static_cast<uint32_t>(SipHash(keys));
        return Jenkins(hash != 0 ? hash : 1, 0) >> 1;
    }

    // Which of `count` equal next hops a hash chooses (fib_rebalance() in net/ipv4/fib_semantics.c).
    static size_t Choose(uint32_t hash, size_t count) {
        for (size_t i = 1; i < count; ++i) {
            uint64_t bound = ((uint64_t{i} << 31) + count / 2) / count - 1;
            if (hash <= bound) {
                return i - 1;
            }
        }
        return count - 1;
    }

  private:
    // Numbers as a little-endian kernel sees them.
    static uint32_t Word(const std::array<uint8_t, 4>& b) {
        return b[0] | b[1] << 8 | b[2] << 16 | uint32_t{b[3]} << 24;
    }
    static uint16_t Half(const std::array<uint8_t, 2>& b) {
        return static_cast<uint16_t>(b[0] | b[1] << 8);
    }

    static uint64_t Rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }
    static uint32_t Rotate(uint32_t x, int by) { return x << by | x >> (32 - by); }

    uint64_t SipHash(const std::array<uint8_t, 48>& data) const {
        uint64_t a = 0x736f6d6570736575ULL ^ key_, b = 0x646f72616e646f6dULL ^ key_;
        uint64_t c = 0x6c7967656e657261ULL ^ key_, d = 0x7465646279746573ULL ^ key_;
        auto round = [&] {
            a += b, b = Rotate(b, 13), b ^= a, a = Rotate(a, 32);
            c += d, d = Rotate(d, 16), d ^= c;
            a += d, d = Rotate(d, 21), d ^= a;
            c += b, b = Rotate(b, 17), b ^= c, c = Rotate(c, 32);
        };
        for (size_t at = 0; at < data.size(); at += 8) {
            uint64_t word;
            std::memcpy(&word, &data[at], 8);
            d ^= word;
            round(), round();
            a ^= word;
        }
        uint64_t last = uint64_t{data.size()} << 56;
        d ^= last;
        round(), round();
        a ^= last;
        c ^= 0xff;
        round(), round(), round(), round();
        return a ^ b ^ c ^ d;
    }

    // jhash_2words() of include/linux/jhash.h.
    static uint32_t Jenkins(uint32_t a, uint32_t b) {
        constexpr uint32_t initial = 0xdeadbeef + (2 << 2);
        uint32_t c = initial;
        a += initial, b += initial;
        c ^= b, c -= Rotate(b, 14);
        a ^= c, a -= Rotate(c, 11);
        b ^= a, b -= Rotate(a, 25);
        c ^= b, c -= Rotate(b, 16);
        a ^= c, a -= Rotate(c, 4);
        b ^= a, b -= Rotate(a, 14);
        c ^= b, c -= Rotate(b, 24);
        return c;
    }

    uint64_t key_;
};

} // namespace closloop
