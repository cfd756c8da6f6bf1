// What a device asks of the queues in front of its link.
#pragma once

#include "frame.h"

#include <cstdint>

namespace closloop {

// Where a device keeps what it cannot send yet.
class Waiting {
  public:
    virtual ~Waiting() = default;
    virtual void Put(Frame frame) = 0;
    // Bytes of the frame that is next, 0 if there is none.
    virtual uint32_t NextBytes() = 0;
    // Bytes of all frames.
    virtual int64_t bytes() const = 0;
    // Takes out the frame that `NextBytes` was about.
    virtual Frame Get() = 0;
    // Called after `Get`, once the frame is on its way.
    virtual void Sent() {}
};

} // namespace closloop
