// One switch's choice among equal-cost ports: docs/load-balancing.md.
#pragma once

#include "balancing.h"
#include "conga.h"
#include "flowlet_table.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace closloop {

// Chooses for each packet or flowlet. A Port has `is_cut()`, `waiting_bytes()` and `load()`.
template <class Port> class PathChoice {
  public:
    using Ports = std::vector<Port*>;

    // Of the switch at this place among the testbed's.
    PathChoice(const Balancing& rules, uint64_t seed, uint64_t place, int64_t timeout_ns)
        : counts(), rules_(rules), draws_(seed, place), timeout_ns_(timeout_ns),
          table_(rules.entries), tables_(rules.metric_age_ns) {}

    void SetTimeout(int64_t timeout_ns) { timeout_ns_ = timeout_ns; }
    int64_t timeout_ns() const { return timeout_ns_; }
    int64_t EntriesInUse(int64_t now_ns) const { return table_.InUse(now_ns, timeout_ns_); }

    // The switch's routes have changed.
    void Forget() { best_.clear(); }

    // For CONGA alone: the switch's tier, 1 for leaves, and its partner there on the way to a leaf.
    void SetTier(size_t tier) { tier_ = tier; }
    bool is_conga() const { return tier_ > 0; }
    void SetPartner(size_t target, int64_t partner, Ports routes) {
        ways_[target] = {partner, std::move(routes)};
    }

    // A packet has come that is from under the leaf `source`.
    void Arrived(conga::Header& header, size_t source, int64_t now_ns) {
        if (tier_ > header.size() || header[tier_ - 1].tag == conga::NO_TAG) {
            return;
        }
        if (auto way = ways_.find(source); way != ways_.end()) {
            tables_.Take(way->second.partner, header[tier_ - 1], now_ns);
        }
        header[tier_ - 1] = {};
    }

    // The port by which a packet of this flow goes to the leaf `target`, of two or more `routes`;
    // `ecmp` is its flow's.
    Port* Choose(uint64_t key, size_t target, const Ports& routes, Port* ecmp, int64_t now_ns) {
        open_.clear();
        for (Port* port : routes) {
            if (!port->is_cut()) {
                open_.push_back(port);
            }
        }
        if (open_.empty()) {
            return ecmp;
        }
        return rules_.kind == Kind::SPRAY ? OfPacket(key, target, routes, now_ns)
                                          : OfFlowlet(key, target, routes, ecmp, now_ns);
    }

    // A packet goes to another switch, on its way to the leaf `target`.
    void Leaves(conga::Header& header, size_t target, Port* out, int64_t bytes, int64_t now_ns) {
        out->load().Add(bytes, now_ns);
        auto way = ways_.find(target);
        if (way != ways_.end() && tier_ <= header.size()) {
            header[tier_ - 1] = tables_.Label(way->second.partner, Tag(way->second, out));
        }
        uint8_t metric = out->load().Metric(now_ns);
        for (conga::Field& field : header) {
            field.metric = std::max(field.metric, metric);
        }
    }

    PathCounts counts;

  private:
    struct Way {
        int64_t partner;
        Ports routes; // when nothing has failed
    };

    static uint8_t Tag(const Way& way, const Port* port) {
        auto found = std::find(way.routes.begin(), way.routes.end(), port);
        return found == way.routes.end() ? conga::NO_TAG
                                         : static_cast<uint8_t>(found - way.routes.begin());
    }

    bool IsOpen(const Port* port) const {
        return std::find(open_.begin(), open_.end(), port) != open_.end();
    }

    Port* OfPacket(uint64_t key, size_t target, const Ports& routes, int64_t now_ns) {
        Port*& last = last_[key];
        return last = Routed(target, routes, last, now_ns);
    }

    Port* OfFlowlet(uint64_t key, size_t target, const Ports& routes, Port* ecmp,
                    int64_t now_ns) {
        auto* entry = table_.Find(key, now_ns, timeout_ns_);
        if (entry == nullptr) {
            ++counts.overflows;
            return ecmp;
        }
        if (entry->port == nullptr && rules_.route_by == RouteBy::RANDOM && IsOpen(ecmp)) {
            ++counts.flowlets;
            entry->port = ecmp;
        } else if (now_ns - entry->last_ns > timeout_ns_ || !IsOpen(entry->port)) {
            entry->port = Routed(target, routes, entry->port, now_ns);
        }
        entry->last_ns = now_ns;
        return entry->port;
    }

    // The port of a flowlet or packet, whose flow's former one may be null.
    Port* Routed(size_t target, const Ports& routes, Port* former, int64_t now_ns) {
        Port* port = Route(target, routes, former, now_ns);
        ++counts.flowlets;
        counts.reroutes += former != nullptr && port != former ? 1 : 0;
        return port;
    }

    Port* Route(size_t target, const Ports& routes, Port* former, int64_t now_ns) {
        switch (rules_.route_by) {
        case RouteBy::ROUND_ROBIN:
            return open_[turn_++ % open_.size()];
        case RouteBy::DRILL:
            return LeastQueued(best_[routes]);
        case RouteBy::CONGA:
            return LeastCongested(target, former, now_ns);
        default:
            return open_[draws_.Among(open_.size())];
        }
    }

    // Remembers in `best` what it returns.
    Port* LeastQueued(Port*& best) {
        Port* least = open_[draws_.Among(open_.size())];
        for (Port* port : {open_[draws_.Among(open_.size())], best}) {
            if (port != nullptr && !port->is_cut() &&
                port->waiting_bytes() < least->waiting_bytes()) {
                least = port;
            }
        }
        return best = least;
    }

    Port* LeastCongested(size_t target, Port* former, int64_t now_ns) {
        auto way = ways_.find(target);
        uint8_t least = UINT8_MAX;
        Ports equal;
        for (Port* port : open_) {
            uint8_t metric = port->load().Metric(now_ns);
            if (way != ways_.end()) {
                metric = std::max(metric, tables_.Behind(way->second.partner,
                                                         Tag(way->second, port), now_ns));
            }
            if (metric < least) {
                least = metric;
                equal.clear();
            }
            if (metric == least) {
                equal.push_back(port);
            }
        }
        if (std::find(equal.begin(), equal.end(), former) != equal.end()) {
            return former;
        }
        return equal[draws_.Among(equal.size())];
    }

    Balancing rules_;
    Draws draws_;
    int64_t timeout_ns_;
    FlowletTable<Port> table_;
    std::unordered_map<uint64_t, Port*> last_; // under spray, by flow
    uint64_t turn_ = 0;
    std::map<Ports, Port*> best_; // for DRILL, by the ports of a route
    conga::Tables tables_;
    size_t tier_ = 0;
    std::unordered_map<size_t, Way> ways_; // by the leaf that they lead to
    Ports open_;
};

} // namespace closloop
