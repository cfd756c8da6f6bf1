// Selective repeat: what both ends of a flow know of packets that came too early.
//
// As Mittal et al., "Revisiting Network Support for RDMA", SIGCOMM 2018, section 3.1: a packet is
// missing if a later one has arrived. It is sent again once; if that is lost too, the timeout helps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace closloop::roce {

// A set of packets' numbers.
class PacketSet {
  public:
    bool has(uint32_t psn) const { return psn < has_.size() && has_[psn]; }
    void Add(uint32_t psn) {
        if (psn >= has_.size()) {
            has_.resize(psn + 1, false);
        }
        has_[psn] = true;
    }
    // The first number from `psn` on, and below `end`, that it lacks; `end` if there is none.
    uint32_t FirstMissing(uint32_t psn, uint32_t end) const {
        while (psn < end && has(psn)) {
            ++psn;
        }
        return std::min(psn, end);
    }

  private:
    std::vector<bool> has_;
};

// The sender's: packets that are missing. Of those before `judged` it is known whether they are.
class Missing {
  public:
    bool any() const { return next_ < judged_; } // that has not been sent again
    uint32_t next() const { return next_; }
    uint32_t judged() const { return judged_; }

    // The next one is sent again.
    void Sent() { next_ = arrived_.FirstMissing(next_ + 1, judged_); }

    // A packet has arrived too early, all before `acked` in their order. Returns whether another
    // one is missing now.
    bool Arrived(uint32_t psn, uint32_t acked) {
        uint32_t from = std::max(judged_, acked);
        arrived_.Add(psn);
        bool news = psn > from && arrived_.FirstMissing(from, psn) < psn;
        judged_ = psn > from ? psn : judged_;
        Acked(acked);
        return news;
    }

    void Acked(uint32_t acked) {
        if (any()) {
            next_ = arrived_.FirstMissing(std::max(next_, acked), judged_);
        }
    }

    // Nothing was heard: of what was sent until `sent`, all that is not known to have arrived.
    void LoseAll(uint32_t acked, uint32_t sent) {
        judged_ = sent;
        next_ = arrived_.FirstMissing(acked, judged_);
    }

  private:
    PacketSet arrived_;
    uint32_t next_ = 0, judged_ = 0;
};

// The receiver's: packets that came too early.
class Early {
  public:
    bool any(uint32_t expected) const { return end_ > expected; }
    void Add(uint32_t psn) {
        held_.Add(psn);
        end_ = std::max(end_, psn + 1);
    }
    // What is expected after `psn` has come.
    uint32_t After(uint32_t psn) const {
        uint32_t next = psn + 1;
        return next < end_ ? held_.FirstMissing(next, end_) : next;
    }

  private:
    PacketSet held_;
    uint32_t end_ = 0;
};

} // namespace closloop::roce
