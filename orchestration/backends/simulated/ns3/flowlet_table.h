// A switch's flowlet table: which port each flow has, and when its last packet came.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace closloop {

// A flow has four places, which its key says. They get memory when one of them is taken.
template <class Port> class FlowletTable {
  public:
    struct Entry {
        uint64_t key = 0;
        int64_t last_ns = 0;
        Port* port = nullptr; // null: free, or of a flow whose first packet is being routed
    };

    explicit FlowletTable(uint64_t entries) : buckets_((entries + WAYS - 1) / WAYS) {}

    // The entry of a flow. If it has none, one that nobody has used for the timeout, with the flow's
    // key and no port; null if others use all of its places.
    Entry* Find(uint64_t key, int64_t now_ns, int64_t timeout_ns) {
        uint64_t place = key & (WAYS * buckets_.size() - 1);
        std::unique_ptr<Bucket>& bucket = buckets_[place / WAYS];
        if (!bucket) {
            bucket = std::make_unique<Bucket>();
            taken_.push_back(bucket.get());
        }
        Entry* vacant = nullptr;
        for (uint64_t step = 0; step < WAYS; ++step) {
            Entry& entry = (*bucket)[(place ^ step) % WAYS];
            if (entry.port != nullptr && entry.key == key) {
                return &entry;
            }
            bool idle = entry.port == nullptr || now_ns - entry.last_ns > timeout_ns;
            vacant = vacant == nullptr && idle ? &entry : vacant;
        }
        if (vacant != nullptr) {
            *vacant = {key, now_ns, nullptr};
        }
        return vacant;
    }

    // How many flows have sent a packet within the timeout.
    int64_t InUse(int64_t now_ns, int64_t timeout_ns) const {
        int64_t count = 0;
        for (const Bucket* bucket : taken_) {
            for (const Entry& entry : *bucket) {
                count += entry.port != nullptr && now_ns - entry.last_ns <= timeout_ns ? 1 : 0;
            }
        }
        return count;
    }

  private:
    static constexpr uint64_t WAYS = 4;
    using Bucket = std::array<Entry, WAYS>;

    std::vector<std::unique_ptr<Bucket>> buckets_;
    std::vector<const Bucket*> taken_;
};

} // namespace closloop
