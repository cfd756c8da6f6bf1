// Which flows each queue has seen lately, for tuners that observe flows.
#pragma once

#include "frame.h"
#include "wire.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace closloop {

// Knows every flow by its sender's address and port. It has room for all of them.
class FlowTable {
  public:
    void Add(uint32_t address, uint16_t port, int64_t receiver, int64_t sender) {
        number_[Key(address, port)] = flows_.size();
        flows_.push_back({receiver, sender, {}});
    }

    // A packet with payload is about to wait in a queue.
    void Note(const Ends& ends, int64_t queue) {
        auto found = number_.find(Key(ends.source, ends.source_port));
        if (found != number_.end()) {
            Note(found->second, ends.payload_bytes, queue);
        }
    }

    // The same of a flow by its number, which is the order of `Add`.
    void Note(size_t flow, int64_t payload_bytes, int64_t queue) {
        std::vector<Seen>& places = flows_[flow].places;
        for (Seen& seen : places) {
            if (seen.queue == queue) {
                seen.bytes += payload_bytes;
                seen.slot = slot_;
                return;
            }
        }
        places.push_back({queue, payload_bytes, slot_});
    }

    // Rows of queue, receiver, sender and bytes so far, of what was seen after slot `before`; what
    // comes from now on is of slot `now`.
    Ints Read(int64_t before, int64_t now) {
        Ints rows;
        for (const Flow& flow : flows_) {
            for (const Seen& seen : flow.places) {
                if (seen.slot > before) {
                    rows.insert(rows.end(), {seen.queue, flow.receiver, flow.sender, seen.bytes});
                }
            }
        }
        slot_ = now;
        return rows;
    }

  private:
    struct Seen {
        int64_t queue, bytes, slot;
    };
    struct Flow {
        int64_t receiver, sender;
        std::vector<Seen> places;
    };

    static uint64_t Key(uint32_t address, uint16_t port) {
        return uint64_t{address} << 16 | port;
    }

    std::unordered_map<uint64_t, size_t> number_;
    std::vector<Flow> flows_;
    int64_t slot_ = 0;
};

} // namespace closloop
