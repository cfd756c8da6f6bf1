// A switch and its ports: queues by class, marks by the straight line on the instantaneous queue.
#pragma once

#include "ecmp_hash.h"
#include "flow_table.h"
#include "random.h"
#include "roce_line.h"
#include "roce_packet.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace closloop::roce {

// One class' queue at a port, with its counters.
struct Queue {
    int64_t limit_bytes, quantum_bytes;
    int64_t kmin_bytes, kmax_bytes; // beyond the limit at first: nothing is marked
    int64_t max_p = 0;              // the probability at kmax, as a share of 2^32
    Fifo packets;
    int64_t backlog_bytes = 0, deficit_bytes = 0;
    int64_t tx_bytes = 0, tx_packets = 0, marked = 0, dropped = 0;
};

class Switch;

class Port : public End {
  public:
    // `first_queue` is the number of its first queue among all of the fabric's.
    Port(Switch* owner, Line line, uint64_t seed, bool marks_departures, int64_t first_queue)
        : line_(line), owner_(owner), random_(seed), marks_departures_(marks_departures),
          first_queue_(first_queue) {}

    void AddQueue(int64_t limit_bytes, int64_t quantum_bytes) {
        queues_.push_back({limit_bytes, quantum_bytes, limit_bytes + 1, limit_bytes + 1});
    }

    Line& line() { return line_; }
    Queue& queue(size_t klass) { return queues_[klass]; }
    int64_t first_queue() const { return first_queue_; }
    void SetCut(bool cut) { cut_ = cut; }

    void Arrive(Packet* packet) override;

    // A packet wants to leave here. False: there is no room for it.
    bool Put(Packet* packet, const Clock& clock) {
        Queue& queue = queues_[packet->klass];
        if (queue.backlog_bytes + packet->bytes > queue.limit_bytes) {
            ++queue.dropped;
            return false;
        }
        if (!marks_departures_) {
            Mark(queue, packet);
        }
        if (queue.packets.empty()) {
            queue.deficit_bytes = queue.quantum_bytes;
            turns_.push_back(packet->klass);
        }
        queue.packets.Put(packet);
        queue.backlog_bytes += packet->bytes;
        if (!waits_for_line_) {
            int64_t now_ps = clock.Now();
            if (line_.free_ps() <= now_ps) {
                SendNext(now_ps, clock);
            } else {
                waits_for_line_ = true;
                clock.At(line_.free_ps(), &line_free_);
            }
        }
        return true;
    }

  private:
    // Whether a packet that leaves so many bytes behind it, or finds so many before it, is marked.
    void Mark(Queue& queue, Packet* packet) {
        int64_t above = queue.backlog_bytes - queue.kmin_bytes;
        if (above < 0) {
            return;
        }
        int64_t span = queue.kmax_bytes - queue.kmin_bytes;
        if (above < span && int64_t{random_.Next32()} * span >= queue.max_p * above) {
            return;
        }
        if (packet->capable) {
            packet->marked = true;
            ++queue.marked;
        }
    }

    // The class whose turn it is: deficit round robin, at least a frame a turn.
    Queue& Next() {
        if (queues_.size() > 1) {
            while (queues_[turns_.front()].packets.front().bytes >
                   queues_[turns_.front()].deficit_bytes) {
                queues_[turns_.front()].deficit_bytes += queues_[turns_.front()].quantum_bytes;
                turns_.push_back(turns_.front());
                turns_.pop_front();
            }
        }
        return queues_[turns_.front()];
    }

    void SendNext(int64_t now_ps, const Clock& clock) {
        Queue& queue = Next();
        Packet* packet = queue.packets.Take();
        queue.deficit_bytes -= packet->bytes;
        queue.backlog_bytes -= packet->bytes;
        queue.tx_bytes += packet->bytes;
        ++queue.tx_packets;
        if (queue.packets.empty()) {
            turns_.pop_front();
        }
        if (marks_departures_) {
            Mark(queue, packet);
        }
        if (packet->telemetry) {
            AddTelemetry(packet, now_ps);
        }
        line_.Send(packet, now_ps, clock);
        waits_for_line_ = !turns_.empty();
        if (waits_for_line_) {
            clock.At(line_.free_ps(), &line_free_);
        }
    }

    // Of all classes, and with their framing: what the line can send.
    void AddTelemetry(Packet* packet, int64_t now_ps) const {
        int64_t sent = -(packet->bytes + line_.framing_bytes()), left = 0;
        for (const Queue& queue : queues_) {
            sent += queue.tx_bytes + queue.tx_packets * line_.framing_bytes();
            left += queue.backlog_bytes;
        }
        packet->seen.Add(static_cast<uint32_t>(first_queue_), Ns(now_ps), sent, left,
                         line_.rate_bps());
    }

    void LineFree();

    Line line_;
    Switch* owner_;
    Random random_;
    bool marks_departures_, cut_ = false;
    bool waits_for_line_ = false; // LineFree will be called when it is free
    int64_t first_queue_;
    std::vector<Queue> queues_;
    std::deque<uint8_t> turns_; // classes that have packets, the next first
    Call<Port, &Port::LineFree> line_free_{this};
};

// What a switch knows of a flow: the ends as its packets carry them.
struct Ways {
    FiveTuple tuple;
    uint32_t source, destination;
};

class Switch {
  public:
    Switch(uint32_t seed, const Clock* clock, Packets* packets, FlowTable* table)
        : clock_(clock), packets_(packets), table_(table), hash_(seed) {}

    void AddHost(uint32_t address, Port* port) { hosts_[address] = port; }
    void Know(const std::vector<Ways>* ways) {
        ways_ = ways;
        out_.assign(2 * ways->size(), nullptr);
    }

    // Forgets which way flows go.
    void Forget() { std::fill(out_.begin(), out_.end(), nullptr); }

    // Ports towards the switch number `target`; none makes it unreachable.
    void SetPaths(size_t target, std::vector<Port*> ports) {
        if (paths_.size() <= target) {
            paths_.resize(target + 1);
        }
        paths_[target] = std::move(ports);
    }

    void Forward(Packet* packet) {
        ++packet->switches;
        Port*& out = out_[2 * packet->flow + (packet->goes_back() ? 1 : 0)];
        if (out == nullptr) {
            out = Route(*packet);
        }
        if (out != nullptr && table_ != nullptr && packet->payload_bytes > 0) {
            table_->Note(packet->flow, packet->payload_bytes, out->first_queue() + packet->klass);
        }
        if (out == nullptr || !out->Put(packet, *clock_)) {
            packets_->Done(packet);
        }
    }

    const Clock& clock() const { return *clock_; }
    Packets& packets() { return *packets_; }

  private:
    Port* Route(const Packet& packet) const {
        const Ways& ways = (*ways_)[packet.flow];
        uint32_t to = packet.goes_back() ? ways.source : ways.destination;
        auto host = hosts_.find(to);
        if (host != hosts_.end()) {
            return host->second;
        }
        size_t target = to >> 16 & 0xff;
        if (target >= paths_.size() || paths_[target].empty()) {
            return nullptr;
        }
        // the hash is the same in both directions
        return paths_[target][EcmpHash::Choose(hash_(ways.tuple), paths_[target].size())];
    }

    const Clock* clock_;
    Packets* packets_;
    FlowTable* table_;
    EcmpHash hash_;
    std::unordered_map<uint32_t, Port*> hosts_;
    std::vector<std::vector<Port*>> paths_;
    const std::vector<Ways>* ways_ = nullptr;
    std::vector<Port*> out_; // of each flow, there and back; null while not known
};

inline void Port::Arrive(Packet* packet) {
    if (cut_) {
        owner_->packets().Done(packet);
    } else {
        owner_->Forward(packet);
    }
}

inline void Port::LineFree() { SendNext(owner_->clock().Now(), owner_->clock()); }

} // namespace closloop::roce
