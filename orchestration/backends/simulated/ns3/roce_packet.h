// A RoCEv2 packet. It is itself the event of its arrival, so a hop costs ns-3 no memory.
#pragma once

#include "conga.h"
#include "policies.h"

#include "ns3/event-impl.h"
#include "ns3/simulator-impl.h"
#include "ns3/simulator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>

namespace closloop::roce {

class Packet;
class PriorityGroup;

// An end of a cable.
class End {
  public:
    virtual ~End() = default;
    virtual void Arrive(Packet* packet) = 0;
};

enum class Kind : uint8_t { DATA, ACK, NACK, CNP, PROBE, PROBE_ANSWER, PAUSE };

// In-band telemetry as HPCC's packets carry it: Li et al., SIGCOMM 2019, figure 7. Two bytes, and
// eight for each of five hops, however many there are; times and bytes in steps.
struct Telemetry {
    static constexpr uint32_t BYTES = 2 + 5 * 8;
    std::array<policies::cl_hop, 5> hop;
    uint32_t hops = 0, path = 0;

    // A port that is known by a number sends the packet, and leaves so many bytes in its queues.
    void Add(uint32_t port, int64_t now_ns, int64_t sent_bytes, int64_t left_bytes,
             int64_t rate_bps) {
        if (hops == hop.size()) {
            return;
        }
        path = (path * 31 + port + 1) & 0xfff;
        hop[hops].at_ns = static_cast<uint32_t>(now_ns) & CL_HOP_NS_MASK;
        hop[hops].tx_bytes = static_cast<uint32_t>(sent_bytes) & CL_HOP_BYTES_MASK & ~127U;
        hop[hops].queue_bytes =
            static_cast<uint32_t>(std::min<int64_t>(left_bytes / 80, 0xffff)) * 80;
        hop[hops].rate_mbps = static_cast<uint32_t>(rate_bps / 1'000'000);
        ++hops;
        for (uint32_t i = 0; i < hops; ++i) {
            hop[i].path = path; // one path is one number, at all of its hops
        }
    }
};

class Packet : public ns3::EventImpl {
  public:
    Kind kind;
    uint8_t klass;
    bool asks;    // for an acknowledgement
    bool capable; // of a mark
    bool marked;
    bool telemetry; // ports write into it
    uint8_t switches;
    uint32_t flow; // its number in the schedule; acknowledgements and CNPs go back to its sender
    uint32_t psn;
    uint32_t bytes;         // on Ethernet, checksum and framing apart
    uint32_t payload_bytes; // of them
    union {
        uint32_t arrived; // with selective repeat, the packet that made a NACK
        int64_t probe_ps; // when a probe, or the one that is answered, was sent
        struct {
            uint16_t quanta;    // of a pause, 0 ends it
            uint8_t priorities; // that it is about, as bits
        } pause;
    };
    End* to;
    Packet* behind = nullptr; // in a Fifo
    PriorityGroup* group;     // in a shared buffer: what it is counted with, null for its queue
    conga::Header conga;      // of switches that route by it
    Telemetry seen;           // of ports, by this packet or the one that it acknowledges

    bool goes_back() const { return kind != Kind::DATA && kind != Kind::PROBE; }

  private:
    void Notify() override { to->Arrive(this); }
};

// Packets in the order in which they came.
class Fifo {
  public:
    bool empty() const { return first_ == nullptr; }
    const Packet& front() const { return *first_; }
    void Put(Packet* packet) {
        packet->behind = nullptr;
        (first_ != nullptr ? last_->behind : first_) = packet;
        last_ = packet;
    }
    Packet* Take() {
        Packet* packet = first_;
        first_ = packet->behind;
        return packet;
    }
    // Moves those of a class to the end of another one, in their order.
    void Move(uint8_t klass, Fifo& to) {
        Fifo all = *this;
        first_ = nullptr;
        while (!all.empty()) {
            Packet* packet = all.Take();
            (packet->klass == klass ? to : *this).Put(packet);
        }
    }
    // Whether one of them is counted with `group`, or whether there is any.
    bool Holds(const PriorityGroup* group) const {
        const Packet* packet = first_;
        while (packet != nullptr && group != nullptr && packet->group != group) {
            packet = packet->behind;
        }
        return packet != nullptr;
    }

  private:
    Packet *first_ = nullptr, *last_ = nullptr;
};

// All packets there are; those that have arrived are used again.
class Packets {
  public:
    Packet* New() {
        if (free_.empty()) {
            return &all_.emplace_back();
        }
        return free_.Take();
    }
    void Done(Packet* packet) { free_.Put(packet); }

  private:
    std::deque<Packet> all_;
    Fifo free_;
};

// ns-3's simulator with times in picoseconds, which is then also its own resolution.
class Clock {
  public:
    Clock() : simulator_(ns3::PeekPointer(ns3::Simulator::GetImplementation())) {}

    int64_t Now() const { return simulator_->Now().GetTimeStep(); }

    // Lets an event happen. It may be scheduled several times, and stays its owner's.
    void At(int64_t at_ps, ns3::EventImpl* event) const {
        event->Ref();
        simulator_->ScheduleWithContext(ns3::Simulator::NO_CONTEXT, ns3::Time(at_ps - Now()),
                                        event);
    }

  private:
    ns3::SimulatorImpl* simulator_;
};

// Calls a method of its owner when it happens.
template <class Owner, void (Owner::*METHOD)()> class Call : public ns3::EventImpl {
  public:
    explicit Call(Owner* owner) : owner_(owner) {}

  private:
    void Notify() override { (owner_->*METHOD)(); }

    Owner* owner_;
};

} // namespace closloop::roce
