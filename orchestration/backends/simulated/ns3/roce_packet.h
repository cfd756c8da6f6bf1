// A RoCEv2 packet. It is itself the event of its arrival, so a hop costs ns-3 no memory.
#pragma once

#include "ns3/event-impl.h"
#include "ns3/simulator-impl.h"
#include "ns3/simulator.h"

#include <cstdint>
#include <deque>

namespace closloop::roce {

class Packet;

// An end of a cable.
class End {
  public:
    virtual ~End() = default;
    virtual void Arrive(Packet* packet) = 0;
};

enum class Kind : uint8_t { DATA, ACK, NACK, CNP };

class Packet : public ns3::EventImpl {
  public:
    Kind kind;
    uint8_t klass;
    bool asks;    // for an acknowledgement
    bool capable; // of a mark
    bool marked;
    uint32_t flow; // its number in the schedule; acknowledgements and CNPs go back to its sender
    uint32_t psn;
    uint32_t bytes;         // on Ethernet, checksum and framing apart
    uint32_t payload_bytes; // of them
    End* to;
    Packet* behind = nullptr; // in a Fifo

    bool goes_back() const { return kind != Kind::DATA; }

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
