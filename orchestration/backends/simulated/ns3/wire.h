// The pipe to the controller: requests and answers are an operation, a length, and int64 arrays.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

namespace closloop {

using Ints = std::vector<int64_t>;

// What the controller asks for; orchestration/backends/simulated/program.py has the same numbers.
enum Operation : int64_t {
    BUILD = 1,      // the fabric and its flows; answers when all of them are connected
    RUN = 2,        // until a time; answers the time and how many flows have ended
    READ = 3,       // every queue's and host's counters
    THRESHOLDS = 4, // new thresholds for some queues
    LINKS = 5,      // which links are cut
    ROUTES = 6,     // where switches send what is for whom
    FLOWS = 7,      // what became of the flows
    FLOW_TABLE = 8, // which flows each queue has seen lately
    NICS = 9,       // every host's congestion notifications, round trips and rates
    BUFFERS = 10,   // what is paused and held at switches with a shared buffer
    INCIDENTS = 11, // what the watchdog has found
    PAUSE = 12,     // a NIC sends a pause frame: its port, priorities as bits, quanta
    PARAMETERS = 13, // new parameters of some hosts' congestion control
    COUNTERS = 14,  // every RoCE flow's counters
    PATHS = 15,     // new flowlet timeouts; answers every switch's, and what it has chosen
    PAIRS = 16,     // bytes by pair of so many edge switches, since this was first asked
};

// Where a BUILD request's first array says that the hosts have RoCE NICs.
constexpr size_t IS_ROCE = 9;

// A fatal error of this program, as ns-3 has them: a line on stderr, and the end.
[[noreturn]] inline void Fail(const std::string& what) {
    std::fprintf(stderr, "closloop-ns3: %s\n", what.c_str());
    std::exit(3);
}

// Bytes of `size` into `to`; false at the end of the pipe.
inline bool ReadAll(void* to, size_t size) {
    auto* at = static_cast<char*>(to);
    while (size > 0) {
        ssize_t got = ::read(STDIN_FILENO, at, size);
        if (got <= 0) {
            return false;
        }
        at += got;
        size -= static_cast<size_t>(got);
    }
    return true;
}

inline void WriteAll(const void* from, size_t size) {
    const auto* at = static_cast<const char*>(from);
    while (size > 0) {
        ssize_t put = ::write(STDOUT_FILENO, at, size);
        if (put <= 0) {
            std::exit(4); // the controller is gone
        }
        at += put;
        size -= static_cast<size_t>(put);
    }
}

// A request: its operation, and its arrays in order.
class Request {
  public:
    // False when the controller has closed the pipe: that is how it says goodbye.
    bool Receive() {
        int64_t head[2];
        if (!ReadAll(head, sizeof head)) {
            return false;
        }
        operation_ = head[0];
        words_.resize(static_cast<size_t>(head[1]));
        at_ = 0;
        return ReadAll(words_.data(), 8 * words_.size());
    }

    int64_t operation() const { return operation_; }

    // The next array.
    Ints Next() {
        if (at_ >= words_.size() || at_ + 1 + static_cast<size_t>(words_[at_]) > words_.size()) {
            Fail("a request is shorter than it says");
        }
        auto begin = words_.begin() + static_cast<long>(at_) + 1;
        Ints array(begin, begin + words_[at_]);
        at_ += 1 + array.size();
        return array;
    }

  private:
    int64_t operation_ = 0;
    Ints words_;
    size_t at_ = 0;
};

// Answers with one flat array; its shape follows from the request.
inline void Answer(const Ints& words) {
    auto count = static_cast<int64_t>(words.size());
    WriteAll(&count, sizeof count);
    WriteAll(words.data(), 8 * words.size());
}

} // namespace closloop
