// A RoCE flow: what its sender and its receiver know of it, and what came of it.
#pragma once

#include "policies.h"
#include "roce_packet.h"
#include "roce_pause.h"
#include "roce_recovery.h"

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace closloop::roce {

// Ethernet, IPv4, UDP and InfiniBand's transport header, and its checksum behind the payload.
constexpr uint32_t HEADER_BYTES = 14 + 20 + 8 + 12 + 4;
constexpr uint32_t ACK_BYTES = HEADER_BYTES + 4, CNP_BYTES = HEADER_BYTES + 16;
// A NACK that names the packet that made it, and a probe with its time.
constexpr uint32_t SELECTIVE_NACK_BYTES = ACK_BYTES + 4, PROBE_BYTES = HEADER_BYTES + 8;

// What happens to events while a policy decides: further ones are heard, or those of the flow or of
// all flows of the NIC are ignored.
enum class Decisions { PIPELINED, BLOCKING, SERIAL };

// What all NICs have in common.
struct Settings {
    const policies::cl_policy* policy;
    int64_t payload_bytes, ack_every, window_bytes, cnp_interval_ps, timeout_ps;
    bool hears_marks; // else its packets cannot carry one
    bool selective;   // repeat, else go-back-N
    int64_t probe_interval_ps; // 0: no probes
    std::array<size_t, PRIORITIES> priority; // of each class, in pause frames
    int64_t decision_latency_ps;
    Decisions decisions;
    std::vector<uint32_t> parameters;
};

class Nic;

// A flow, at both of its ends. As an event it is the sender's look at its progress.
class Flow : public ns3::EventImpl {
  public:
    int64_t start_ps, size_bytes;
    Nic *source, *destination;
    uint32_t number;
    uint8_t klass;
    uint32_t packets; // of the whole message

    // the sender's: what is next, what is acknowledged, up to where that was asked for
    uint32_t next = 0, acked = 0, asked = 0;
    bool listed = false; // among those that wait for their time or turn
    int64_t next_ps = 0, progress_ps = 0;
    int64_t asked_ps = 0; // when an acknowledgement was asked for, with none to come before
    std::deque<std::pair<uint32_t, int64_t>> timed; // packets that asked, and when they were sent
    policies::cl_flow_state state{};
    // what is in effect of what its policy has decided, and until when that decides
    uint64_t rate_bps = 0;
    uint32_t window_bytes = 0;
    int64_t busy_until_ps = 0;
    Missing missing;
    int64_t probe_ps = 0; // when it last probed its path, or began
    bool probed = false;  // with the packet before this one

    // the receiver's
    uint32_t expected = 0;
    bool told_missing = false;
    Early early;
    int64_t cnp_ps = -1;

    // results
    int64_t sent_ps = -1, end_ps = -1;
    int64_t sent = 0, resent = 0, marks = 0, cnps = 0, naks = 0, timeouts = 0, probes = 0;
    int64_t rtts = 0, rtt_sum_ns = 0; // all round trips that were timed

  private:
    void Notify() override;
};

// A host's counters, in the places of TCP's.
struct HostCounters {
    int64_t resent = 0, timeouts = 0, out_of_order = 0, received = 0, cnps = 0;
};

} // namespace closloop::roce
