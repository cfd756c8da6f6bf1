// A switch: which way packets go. Its ports are in roce_port.h.
#pragma once

#include "ecmp_hash.h"
#include "flow_table.h"
#include "frame.h"
#include "pairs.h"
#include "path_choice.h"
#include "roce_port.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace closloop::roce {

// What a switch knows of a flow: the ends as its packets carry them.
struct Ways {
    FiveTuple tuple;
    uint32_t source, destination;
};

class Switch {
  public:
    // `choice` is null where flows take the paths of their hash.
    Switch(uint32_t seed, Packets* packets, FlowTable* table, PathChoice<Port>* choice,
           const Clock* clock)
        : packets_(packets), table_(table), choice_(choice), clock_(clock), hash_(seed) {}

    void AddPort(Port* port) { ports_.push_back(port); }
    const std::vector<Port*>& ports() const { return ports_; }

    void AddHost(uint32_t address, Port* port) {
        hosts_[address] = port;
        pairs_.Owns(address);
    }
    PairCounter& pairs() { return pairs_; }
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
        if (choice_ != nullptr && paths_[target] != ports) {
            choice_->Forget();
        }
        paths_[target] = std::move(ports);
    }
    const std::vector<Port*>& paths(size_t target) const { return paths_.at(target); }

    void Forward(Packet* packet, const Port& in) {
        ++packet->switches;
        Port*& known = out_[2 * packet->flow + (packet->goes_back() ? 1 : 0)];
        if (known == nullptr) {
            known = Route(*packet);
        }
        if (pairs_.counts() && known != nullptr) {
            CountPair(*packet);
        }
        Port* out = choice_ == nullptr || known == nullptr ? known : Choose(*packet, known);
        if (out != nullptr && table_ != nullptr && packet->payload_bytes > 0) {
            table_->Note(packet->flow, packet->payload_bytes, out->first_queue() + packet->klass);
        }
        if (out == nullptr || !out->Put(packet, in)) {
            packets_->Done(packet);
        }
    }

  private:
    void CountPair(const Packet& packet) {
        const Ways& ways = (*ways_)[packet.flow];
        bool back = packet.goes_back();
        pairs_.Count(back ? ways.destination : ways.source, back ? ways.source : ways.destination,
                     packet.bytes - ETHERNET_HEADER_BYTES);
    }

    // Where a packet goes whose flow's hash leads to `ecmp`, which may be its destination's port.
    Port* Choose(Packet& packet, Port* ecmp) {
        const Ways& ways = (*ways_)[packet.flow];
        bool back = packet.goes_back();
        int64_t now_ns = Ns(clock_->Now());
        if (choice_->is_conga()) {
            choice_->Arrived(packet.conga, EdgeOf(back ? ways.destination : ways.source), now_ns);
        }
        size_t target = EdgeOf(back ? ways.source : ways.destination);
        if (target >= paths_.size() || paths_[target].empty()) {
            return ecmp; // it is attached here
        }
        const std::vector<Port*>& paths = paths_[target];
        Port* out = ecmp;
        if (paths.size() > 1) {
            uint64_t key = FlowKey(back ? Reversed(ways.tuple) : ways.tuple);
            out = choice_->Choose(key, target, paths, ecmp, now_ns);
        }
        if (choice_->is_conga()) {
            int64_t bytes = packet.bytes + out->line().framing_bytes();
            choice_->Leaves(packet.conga, target, out, bytes, now_ns);
        }
        return out;
    }

    // What comes back has the ports of what it answers.
    static FiveTuple Reversed(FiveTuple tuple) {
        std::swap(tuple.source, tuple.destination);
        return tuple;
    }

    Port* Route(const Packet& packet) const {
        const Ways& ways = (*ways_)[packet.flow];
        uint32_t to = packet.goes_back() ? ways.source : ways.destination;
        auto host = hosts_.find(to);
        if (host != hosts_.end()) {
            return host->second;
        }
        size_t target = EdgeOf(to);
        if (target >= paths_.size() || paths_[target].empty()) {
            return nullptr;
        }
        // the hash is the same in both directions
        return paths_[target][EcmpHash::Choose(hash_(ways.tuple), paths_[target].size())];
    }

    Packets* packets_;
    FlowTable* table_;
    PathChoice<Port>* choice_;
    const Clock* clock_;
    EcmpHash hash_;
    std::vector<Port*> ports_;
    std::unordered_map<uint32_t, Port*> hosts_;
    std::vector<std::vector<Port*>> paths_;
    const std::vector<Ways>* ways_ = nullptr;
    PairCounter pairs_;
    std::vector<Port*> out_; // of each flow, there and back; null while not known
};

inline void Port::Arrive(Packet* packet) {
    if (!cut_ && packet->kind != Kind::PAUSE) {
        owner_->Forward(packet, *this);
        return;
    }
    if (!cut_) {
        timers_.Take(*packet);
    }
    packets_->Done(packet);
}

} // namespace closloop::roce
