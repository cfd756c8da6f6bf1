// A testbed with RoCE NICs: devices of our own on ns-3's clock, without its IP stack and packets.
#pragma once

#include "choices.h"
#include "flow_table.h"
#include "roce_buffers.h"
#include "roce_nic.h"
#include "roce_packet.h"
#include "roce_port.h"
#include "roce_switch.h"
#include "wire.h"

#include "ns3/object-factory.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace closloop::roce {

// Built from a BUILD request, whose arrays have the order of orchestration/backends/simulated/
// job.py. Devices, ports, links and queues are numbered as in the testbed.
class Fabric {
  public:
    Fabric(Ints scalars, Request& request) : scalars_(std::move(scalars)) {
        ns3::Time::SetResolution(ns3::Time::PS);
        ns3::ObjectFactory heap("ns3::PriorityQueueScheduler");
        ns3::Simulator::SetScheduler(heap);
        clock_ = std::make_unique<Clock>();
        table_ = scalar(OBSERVES_FLOWS) != 0 ? std::make_unique<FlowTable>() : nullptr;
        BuildDevices(request);
        Ints routes = BuildPorts(request);
        SetRoutes(routes);
        choices_->Introduce(request.Next(), switches_);
        ReadFlows(request);
        shared_.Build(request, switches_, ports_, settings_, clock_.get());
    }

    int64_t Now() const { return clock_->Now() / PS_PER_NS; }

    void RunUntil(int64_t t_ns) {
        int64_t left_ps = t_ns * PS_PER_NS - clock_->Now();
        if (left_ps > 0) {
            ns3::Simulator::Stop(ns3::Time(left_ps));
            ns3::Simulator::Run();
        }
    }

    int64_t ended() const { return ended_; }

    // Switches' next hops, rows of switch, target's number, count, ports.
    void SetRoutes(const Ints& rows) {
        for (size_t at = 0; at + 2 < rows.size();) {
            std::vector<Port*> ports;
            for (int64_t i = 0; i < rows[at + 2]; ++i) {
                ports.push_back(ports_[static_cast<size_t>(rows[at + 3 + i])].get());
            }
            auto device = static_cast<size_t>(rows[at]);
            switches_[device]->SetPaths(static_cast<size_t>(rows[at + 1]), std::move(ports));
            at += 3 + static_cast<size_t>(rows[at + 2]);
        }
        for (auto& one : switches_) {
            if (one) {
                one->Forget();
            }
        }
    }

    // Cuts these links (the ports at their ends), and mends all others.
    void Cut(const Ints& ports) {
        std::vector<bool> cut(ports_.size(), false);
        for (int64_t port : ports) {
            cut[static_cast<size_t>(port)] = true;
        }
        for (size_t i = 0; i < ports_.size(); ++i) {
            if (ports_[i]) {
                ports_[i]->SetCut(cut[i]);
            } else {
                nics_[i]->SetCut(cut[i]);
            }
        }
    }

    // New thresholds: queues, kmin, kmax, and the probability at kmax as a share of 2^32.
    void SetThresholds(const Ints& queues, const Ints& kmin, const Ints& kmax, const Ints& max_p) {
        for (size_t i = 0; i < queues.size(); ++i) {
            Queue& queue = *queues_[static_cast<size_t>(queues[i])];
            queue.kmin_bytes = kmin[i];
            queue.kmax_bytes = kmax[i];
            queue.max_p = max_p[i];
        }
    }

    // Eight numbers a queue, then five a host.
    Ints Counters() const {
        Ints all;
        for (const Queue* queue : queues_) {
            all.insert(all.end(), {queue->backlog_bytes, queue->tx_bytes, queue->tx_packets,
                                   queue->marked, queue->dropped, queue->kmin_bytes,
                                   queue->kmax_bytes, queue->max_p});
        }
        for (const auto& host : hosts_) {
            int64_t bytes = 0;
            for (const Nic* nic : host->nics) {
                bytes += nic->tx_bytes - nic->tx_packets * ETHERNET_HEADER_BYTES;
            }
            const HostCounters& own = host->counters;
            all.insert(all.end(), {own.resent, own.timeouts, own.out_of_order, bytes, own.received});
        }
        return all;
    }

    // Four numbers a host, of its NICs: congestion notifications, packets sent again, the longest of
    // their last round trips, and the rates that its flows are allowed.
    Ints Nics() const {
        Ints all;
        for (const auto& host : hosts_) {
            int64_t rtt_ns = 0, rates_bps = 0;
            for (const Nic* nic : host->nics) {
                rtt_ns = std::max(rtt_ns, nic->rtt_ns());
                rates_bps += nic->RatesBps();
            }
            const HostCounters& own = host->counters;
            all.insert(all.end(), {own.cnps, own.resent, rtt_ns, rates_bps});
        }
        return all;
    }

    // New parameters of the NICs of some hosts: a row each, of the policy's and the CNPs' interval in
    // us. Returns what they have then.
    Ints SetParameters(const Ints& hosts, const Ints& rows) {
        Ints all;
        auto width = static_cast<long>(rows.size() / std::max<size_t>(1, hosts.size()));
        for (size_t i = 0; i < hosts.size(); ++i) {
            auto row = rows.begin() + static_cast<long>(i) * width;
            const auto& nics = hosts_[static_cast<size_t>(hosts[i])]->nics;
            for (Nic* nic : nics) {
                nic->SetParameters(Ints(row, row + width));
            }
            Ints now = nics.front()->parameters();
            all.insert(all.end(), now.begin(), now.end());
        }
        return all;
    }

    // What is paused and held where switches have a shared buffer, and what the watchdog has found.
    Ints Buffers() const { return shared_.Read(places_); }
    Ints Incidents() const { return shared_.Incidents(); }

    // Lets the NIC at this port of the testbed send a pause frame.
    void SendPause(int64_t port, int64_t priorities, int64_t quanta) {
        nics_.at(static_cast<size_t>(port))
            ->SendPause(static_cast<uint8_t>(priorities), static_cast<uint16_t>(quanta));
    }

    // Four numbers a flow, the packets that hosts have sent, ns-3's events, and sums over all flows.
    Ints Outcome() const {
        Ints all;
        Ints sums(8, 0);
        for (const Flow& flow : flows_) {
            bool done = flow.end_ps >= 0;
            all.insert(all.end(), {flow.sent_ps < 0 ? -1 : flow.start_ps / PS_PER_NS,
                                   done ? Ns(flow.end_ps) : -1,
                                   flow.resent, done ? 0 : 1});
            const Ints own = {flow.sent, flow.resent, flow.marks,
                              flow.cnps, flow.naks,   flow.timeouts, flow.probes,
                              flow.sent_ps >= 0 && !flow.rtts};
            for (size_t i = 0; i < sums.size(); ++i) {
                sums[i] += own[i];
            }
        }
        int64_t packets = 0;
        for (const auto& nic : nics_) {
            packets += nic ? nic->tx_packets : 0;
        }
        all.push_back(packets);
        all.push_back(static_cast<int64_t>(ns3::Simulator::GetEventCount()));
        all.insert(all.end(), sums.begin(), sums.end());
        return all;
    }

    // New flowlet timeouts of some switches; then five numbers a switch.
    Ints Paths(const Ints& places, const Ints& timeouts_ns) {
        return choices_->Exchange(places, timeouts_ns, Ns(clock_->Now()));
    }

    // A number for each signal of scope flow, in the order of their declarations.
    Ints FlowCounters() const {
        Ints all;
        for (const Flow& flow : flows_) {
            int64_t acked = std::min(flow.acked * settings_.payload_bytes, flow.size_bytes);
            all.insert(all.end(), {acked, flow.resent, flow.rtts, flow.rtt_sum_ns,
                                   static_cast<int64_t>(flow.rate_bps)});
        }
        return all;
    }

    // Bytes by pair of so many edge switches; it counts from the first time on.
    Ints Pairs(size_t edges) { return ReadPairs(switches_, edges); }

    FlowTable* table() { return table_.get(); }

  private:
    struct Host {
        HostCounters counters;
        std::vector<Nic*> nics;
    };
    enum Scalar : size_t {
        SEED = 0, FRAMING = 2, OBSERVES_FLOWS = 8, MARKS_DEPARTURES = 10, POLICY, PAYLOAD,
        ACK_EVERY, WINDOW, CNP_INTERVAL_NS, TIMEOUT_NS, HEARS_MARKS, SELECTIVE, PROBE_INTERVAL_NS,
        DECISION_LATENCY_NS, DECISIONS, FIRST_PARAMETER,
    };
    int64_t scalar(size_t which) const { return scalars_.at(which); }

    // Which devices are switches, and the seeds of their hashes.
    void BuildDevices(Request& request) {
        Ints is_switch = request.Next(), seeds = request.Next();
        choices_ = std::make_unique<Choices<Port>>(request, is_switch, scalar(SEED));
        for (size_t i = 0; i < is_switch.size(); ++i) {
            switches_.push_back(nullptr);
            host_of_.push_back(nullptr);
            if (is_switch[i] != 0) {
                switches_[i] = std::make_unique<Switch>(static_cast<uint32_t>(seeds[i]), &packets_,
                                                        table_.get(), choices_->of(i),
                                                        clock_.get());
            } else {
                hosts_.push_back(std::make_unique<Host>());
                host_of_[i] = hosts_.back().get();
            }
        }
        settings_.policy = policies::Numbered(static_cast<size_t>(scalar(POLICY)));
        settings_.payload_bytes = scalar(PAYLOAD);
        settings_.ack_every = scalar(ACK_EVERY);
        settings_.window_bytes = scalar(WINDOW);
        settings_.cnp_interval_ps = scalar(CNP_INTERVAL_NS) * PS_PER_NS;
        settings_.timeout_ps = scalar(TIMEOUT_NS) * PS_PER_NS;
        settings_.hears_marks = scalar(HEARS_MARKS) != 0;
        settings_.selective = scalar(SELECTIVE) != 0;
        settings_.probe_interval_ps = scalar(PROBE_INTERVAL_NS) * PS_PER_NS;
        settings_.priority.fill(0);
        settings_.decision_latency_ps = scalar(DECISION_LATENCY_NS) * PS_PER_NS;
        settings_.decisions = static_cast<Decisions>(scalar(DECISIONS));
        settings_.parameters.assign(scalars_.begin() + FIRST_PARAMETER, scalars_.end());
        if (settings_.parameters.size() < settings_.policy->parameters) {
            Fail("a policy has fewer parameters than it needs");
        }
    }

    // Makes ports, NICs and cables; returns the routes, which come next.
    Ints BuildPorts(Request& request) {
        Ints device = request.Next(), peer = request.Next(), rate = request.Next(),
             delay = request.Next(), address = request.Next();
        Ints queue_port = request.Next(), queue_limit = request.Next(), quanta = request.Next();
        auto seed = Mix(static_cast<uint64_t>(scalar(SEED)));
        // a port's queues are neighbours in the order of all queues
        std::vector<int64_t> first(device.size(), -1);
        for (size_t i = queue_port.size(); i-- > 0;) {
            first[static_cast<size_t>(queue_port[i])] = static_cast<int64_t>(i);
        }
        for (size_t i = 0; i < device.size(); ++i) {
            auto owner = static_cast<size_t>(device[i]);
            Line line(rate[i], delay[i], scalar(FRAMING));
            ports_.push_back(nullptr);
            nics_.push_back(nullptr);
            if (host_of_[owner] != nullptr) {
                nics_[i] = std::make_unique<Nic>(line, &settings_, clock_.get(), &packets_,
                                                 &host_of_[owner]->counters, &flows_, &ended_);
                host_of_[owner]->nics.push_back(nics_[i].get());
                nic_of_[static_cast<uint32_t>(address[i])] = nics_[i].get();
            } else {
                ports_[i] = std::make_unique<Port>(switches_[owner].get(), line,
                                                   seed + static_cast<uint64_t>(first[i]),
                                                   scalar(MARKS_DEPARTURES) != 0, first[i],
                                                   clock_.get(), &packets_);
                choices_->Prepare(*ports_[i], rate[i]);
                switches_[owner]->AddPort(ports_[i].get());
            }
        }
        for (size_t i = 0; i < device.size(); ++i) {
            auto other = static_cast<size_t>(peer[i]);
            End* end = ports_[other] ? static_cast<End*>(ports_[other].get()) : nics_[other].get();
            (ports_[i] ? ports_[i]->line() : nics_[i]->line()).SetPeer(end);
            if (ports_[i] && address[other] != 0) {
                switches_[static_cast<size_t>(device[i])]->AddHost(
                    static_cast<uint32_t>(address[other]), ports_[i].get());
            }
        }
        for (size_t i = 0; i < queue_port.size(); ++i) {
            auto port = static_cast<size_t>(queue_port[i]);
            size_t klass = i - static_cast<size_t>(first[port]);
            ports_[port]->AddQueue(queue_limit[i], quanta.empty() ? 0 : quanta[klass]);
        }
        for (size_t i = 0; i < queue_port.size(); ++i) {
            auto port = static_cast<size_t>(queue_port[i]);
            places_.emplace_back(ports_[port].get(), i - static_cast<size_t>(first[port]));
            queues_.push_back(&ports_[port]->queue(places_.back().second));
        }
        return request.Next();
    }

    void ReadFlows(Request& request) {
        Ints start = request.Next(), size = request.Next(), source = request.Next(),
             destination = request.Next(), near_address = request.Next(),
             near_port = request.Next(), far_address = request.Next(), far_port = request.Next(),
             klass = request.Next();
        flows_.resize(start.size());
        for (size_t i = 0; i < start.size(); ++i) {
            Flow& flow = flows_[i];
            flow.number = static_cast<uint32_t>(i);
            flow.start_ps = start[i] * PS_PER_NS;
            flow.size_bytes = size[i];
            flow.klass = static_cast<uint8_t>(klass[i]);
            int64_t whole = (size[i] + settings_.payload_bytes - 1) / settings_.payload_bytes;
            flow.packets = static_cast<uint32_t>(std::max<int64_t>(1, whole));
            flow.source = nic_of_.at(static_cast<uint32_t>(near_address[i]));
            flow.destination = nic_of_.at(static_cast<uint32_t>(far_address[i]));
            ways_.push_back({Tuple(near_address[i], near_port[i], far_address[i], far_port[i]),
                             static_cast<uint32_t>(near_address[i]),
                             static_cast<uint32_t>(far_address[i])});
            if (table_) {
                table_->Add(static_cast<uint32_t>(near_address[i]),
                            static_cast<uint16_t>(near_port[i]), destination[i], source[i]);
            }
        }
        for (auto& one : switches_) {
            if (one) {
                one->Know(&ways_);
            }
        }
        std::vector<Flow*> by_start;
        for (Flow& flow : flows_) {
            by_start.push_back(&flow);
        }
        std::stable_sort(by_start.begin(), by_start.end(), [](const Flow* a, const Flow* b) {
            return a->start_ps < b->start_ps;
        });
        for (Flow* flow : by_start) {
            flow->source->Post(flow);
        }
    }

    static FiveTuple Tuple(int64_t near_address, int64_t near_port, int64_t far_address,
                           int64_t far_port) {
        constexpr uint8_t udp = 17;
        auto byte = [](int64_t word, int at) { return static_cast<uint8_t>(word >> 8 * at); };
        auto four = [&](int64_t word) {
            return std::array<uint8_t, 4>{byte(word, 3), byte(word, 2), byte(word, 1),
                                          byte(word, 0)};
        };
        return {four(near_address),
                four(far_address),
                {byte(near_port, 1), byte(near_port, 0)},
                {byte(far_port, 1), byte(far_port, 0)},
                udp};
    }

    Ints scalars_;
    Settings settings_;
    Packets packets_;
    std::unique_ptr<Clock> clock_;
    std::unique_ptr<FlowTable> table_;
    std::unique_ptr<Choices<Port>> choices_;
    SharedBuffers shared_;
    std::vector<std::unique_ptr<Switch>> switches_;
    std::vector<Host*> host_of_;
    std::vector<std::unique_ptr<Host>> hosts_;
    std::vector<std::unique_ptr<Port>> ports_; // null where there is a NIC
    std::vector<std::unique_ptr<Nic>> nics_;   // null where there is a switch's port
    std::unordered_map<uint32_t, Nic*> nic_of_;
    std::vector<Queue*> queues_;
    std::vector<QueuePlace> places_; // of the queues: ports and classes
    std::vector<Flow> flows_;
    std::vector<Ways> ways_;
    int64_t ended_ = 0;
};

} // namespace closloop::roce
