// What waits at a host's NIC: its flows in turn, as sch_fq without pacing serves them.
#pragma once

#include "frame.h"
#include "waiting.h"

#include <cstdint>
#include <deque>

namespace closloop {

// One sender's frames in its host's NIC.
class FlowQueue {
  public:
    virtual ~FlowQueue() = default;

    // Memory that its frames here take, as TCP small queues count it.
    int64_t held_bytes() const { return held_bytes_; }

  protected:
    // A frame has left the host.
    virtual void Left() {}

  private:
    friend class HostNic;
    struct Held {
        Frame frame;
        int64_t memory_bytes;
    };
    std::deque<Held> frames_;
    int64_t held_bytes_ = 0;
    int64_t credit_bytes_ = 0;
    bool listed_ = false;
};

class HostNic : public Waiting {
  public:
    // `frame_bytes` is the longest frame: a flow's turn is two of them, its first turn ten.
    explicit HostNic(int64_t frame_bytes) : quantum_(2 * frame_bytes), initial_(10 * frame_bytes) {}

    // Says whose frames the host's TCP is handing down, and the memory that each of them takes.
    struct Sending {
        Sending(FlowQueue* flow, int64_t memory_bytes) {
            sender = flow;
            memory = memory_bytes;
        }
        ~Sending() { sender = nullptr; }
        Sending(const Sending&) = delete;
        Sending& operator=(const Sending&) = delete;
    };

    void Put(Frame frame) override {
        FlowQueue* flow = sender != nullptr ? sender : &nobody_;
        int64_t taken = sender != nullptr ? memory : 0;
        flow->held_bytes_ += taken;
        flow->frames_.push_back({std::move(frame), taken});
        if (!flow->listed_) {
            flow->listed_ = true;
            flow->credit_bytes_ = initial_;
            new_.push_back(flow);
        }
    }

    uint32_t NextBytes() override {
        for (;;) {
            bool is_new = !new_.empty();
            std::deque<FlowQueue*>& list = is_new ? new_ : old_;
            if (list.empty()) {
                return 0;
            }
            FlowQueue* flow = list.front();
            if (flow->credit_bytes_ <= 0) {
                flow->credit_bytes_ += quantum_;
                list.pop_front();
                old_.push_back(flow);
            } else if (flow->frames_.empty()) {
                list.pop_front();
                if (is_new && !old_.empty()) {
                    old_.push_back(flow); // once through the old ones, so that none starves
                } else {
                    flow->listed_ = false;
                }
            } else {
                next_ = flow;
                return flow->frames_.front().frame.bytes;
            }
        }
    }

    int64_t bytes() const override { return 0; } // nobody chooses among NICs by what waits

    Frame Get() override {
        FlowQueue::Held held = std::move(next_->frames_.front());
        next_->frames_.pop_front();
        next_->credit_bytes_ -= held.frame.bytes;
        next_->held_bytes_ -= held.memory_bytes;
        left_ = next_;
        ++tx_packets;
        return std::move(held.frame);
    }

    void Sent() override { left_->Left(); }

    int64_t tx_packets = 0;

  private:
    static inline FlowQueue* sender = nullptr;
    static inline int64_t memory = 0;
    FlowQueue nobody_;
    FlowQueue* next_ = nullptr;
    FlowQueue* left_ = nullptr;
    int64_t quantum_, initial_;
    std::deque<FlowQueue*> new_, old_;
};

} // namespace closloop
