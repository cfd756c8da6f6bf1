// What waits at a switch port: RED queues, one a traffic class.
#pragma once

#include "flow_table.h"
#include "frame.h"
#include "red.h"
#include "waiting.h"

#include <cstdint>
#include <deque>
#include <list>
#include <vector>

namespace closloop {

// One RED queue of a switch port, with the counters that Linux keeps of it.
struct RedQueue {
    RedQueue(uint64_t seed, int64_t limit) : red(seed, limit), limit_bytes(limit) {}

    Red red;
    int64_t limit_bytes;
    std::deque<Frame> frames;
    int64_t backlog_bytes = 0;
    int64_t tx_bytes = 0, tx_packets = 0, marked = 0, dropped = 0;
    int64_t deficit_bytes = 0;

    void Put(Frame frame) {
        if (red.Marks(backlog_bytes) && SetCe(*frame.packet)) {
            ++marked;
        }
        if (backlog_bytes + frame.bytes > limit_bytes) {
            ++dropped;
            return;
        }
        backlog_bytes += frame.bytes;
        frames.push_back(std::move(frame));
    }

    Frame Get() {
        Frame frame = std::move(frames.front());
        frames.pop_front();
        backlog_bytes -= frame.bytes;
        tx_bytes += frame.bytes;
        ++tx_packets;
        return frame;
    }
};

// A switch port: one RED queue, or one a class under deficit weighted round robin (sch_ets).
class SwitchQueues : public Waiting {
  public:
    // `first` is the number of its first queue among all of the fabric's; `table` may be null.
    SwitchQueues(std::vector<int64_t> quanta_bytes, int64_t first, FlowTable* table)
        : quanta_(std::move(quanta_bytes)), first_(first), table_(table) {}

    void Add(uint64_t seed, int64_t limit_bytes) { queues_.emplace_back(seed, limit_bytes); }

    RedQueue& queue(size_t klass) { return queues_[klass]; }

    void Put(Frame frame) override {
        size_t klass = 0;
        if (queues_.size() > 1 || table_ != nullptr) {
            Ends ends(*frame.packet);
            klass = queues_.size() > 1 ? ends.Class() : 0;
            if (table_ != nullptr && ends.payload_bytes > 0) {
                table_->Note(ends, first_ + static_cast<int64_t>(klass));
            }
        }
        RedQueue& queue = queues_[klass];
        bool was_empty = queue.frames.empty();
        queue.Put(std::move(frame));
        if (was_empty && !queue.frames.empty() && queues_.size() > 1) {
            queue.deficit_bytes = quanta_[klass];
            turns_.push_back(klass);
        }
    }

    uint32_t NextBytes() override {
        if (queues_.size() == 1) {
            return queues_[0].frames.empty() ? 0 : queues_[0].frames.front().bytes;
        }
        if (turns_.empty()) {
            return 0;
        }
        for (;;) {
            size_t klass = turns_.front();
            RedQueue& queue = queues_[klass];
            uint32_t bytes = queue.frames.front().bytes;
            if (bytes <= queue.deficit_bytes) {
                return bytes;
            }
            queue.deficit_bytes += quanta_[klass];
            turns_.splice(turns_.end(), turns_, turns_.begin());
        }
    }

    int64_t bytes() const override {
        int64_t all = 0;
        for (const RedQueue& queue : queues_) {
            all += queue.backlog_bytes;
        }
        return all;
    }

    Frame Get() override {
        if (queues_.size() == 1) {
            return queues_[0].Get();
        }
        RedQueue& queue = queues_[turns_.front()];
        Frame frame = queue.Get();
        queue.deficit_bytes -= frame.bytes;
        if (queue.frames.empty()) {
            turns_.pop_front();
        }
        return frame;
    }

  private:
    std::vector<RedQueue> queues_;
    std::vector<int64_t> quanta_;
    std::list<size_t> turns_; // classes that have something, the next first
    int64_t first_;
    FlowTable* table_;
};

} // namespace closloop
