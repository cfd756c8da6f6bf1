// A testbed with TCP as ns-3 nodes: hosts with TCP, switches that forward, links between them.
#pragma once

#include "choices.h"
#include "device.h"
#include "flow_table.h"
#include "host_nic.h"
#include "host_tcp.h"
#include "routing.h"
#include "switch_queues.h"
#include "traffic.h"
#include "wire.h"

#include "ns3/arp-l3-protocol.h"
#include "ns3/config.h"
#include "ns3/icmpv4-l4-protocol.h"
#include "ns3/ipv4-l3-protocol.h"
#include "ns3/rng-seed-manager.h"
#include "ns3/string.h"
#include "ns3/traffic-control-layer.h"

#include <memory>
#include <string>
#include <vector>

namespace closloop {

// Built from a BUILD request, whose arrays have the order of orchestration/backends/simulated/
// job.py. Devices, ports, links and queues are numbered as in the testbed.
class Fabric {
  public:
    Fabric(Ints scalars, Request& request) : scalars_(std::move(scalars)) {
        for (auto known : {HostSocket::GetTypeId, LinuxDctcp::GetTypeId, LinuxReduction::GetTypeId,
                           HostTcp::GetTypeId}) {
            known();
        }
        Defaults();
        traffic_ = std::make_unique<Traffic>(scalar(SMALL_QUEUE));
        table_ = scalar(OBSERVES_FLOWS) != 0 ? std::make_unique<FlowTable>() : nullptr;
        BuildDevices(request);
        BuildPorts(request);
        SetRoutes(request.Next());
        choices_->Introduce(request.Next(), switches_);
        ReadFlows(request);
        traffic_->Connect();
    }

    int64_t Now() const { return traffic_->Now(); }
    void RunUntil(int64_t t_ns) { traffic_->RunUntil(t_ns); }
    int64_t ended() const { return traffic_->ended(); }

    // Switches' next hops, rows of switch, target's number, count, ports.
    void SetRoutes(const Ints& rows) {
        for (size_t at = 0; at + 2 < rows.size();) {
            int64_t device = rows[at], target = rows[at + 1];
            SwitchRouting::Ports ports;
            for (int64_t i = 0; i < rows[at + 2]; ++i) {
                size_t port = static_cast<size_t>(rows[at + 3 + i]);
                ports.push_back(ns3::PeekPointer(ports_[port]));
            }
            switches_[device]->SetPaths(static_cast<size_t>(target), std::move(ports));
            at += 3 + static_cast<size_t>(rows[at + 2]);
        }
    }

    // Cuts these links (the ports at their ends), and mends all others.
    void Cut(const Ints& ports) {
        for (auto& device : ports_) {
            device->SetCut(false);
        }
        for (int64_t port : ports) {
            ports_[static_cast<size_t>(port)]->SetCut(true);
        }
    }

    // New thresholds: queues, kmin, kmax, and the kernel's 32-bit probability.
    void SetThresholds(const Ints& queues, const Ints& kmin, const Ints& kmax, const Ints& max_p) {
        for (size_t i = 0; i < queues.size(); ++i) {
            queues_[static_cast<size_t>(queues[i])]->red.Set(kmin[i], kmax[i], max_p[i]);
        }
    }

    // Eight numbers a queue, then five a host.
    Ints Counters() const {
        Ints all;
        for (const RedQueue* queue : queues_) {
            all.insert(all.end(), {queue->backlog_bytes, queue->tx_bytes, queue->tx_packets,
                                   queue->marked, queue->dropped, queue->red.kmin(),
                                   queue->red.kmax(), queue->red.max_p()});
        }
        for (size_t i = 0; i < hosts_.size(); ++i) {
            int64_t bytes = 0;
            for (const LinkDevice* nic : nics_[i]) {
                bytes += nic->ip_bytes();
            }
            const HostCounters& counters = hosts_[i]->counters;
            all.insert(all.end(),
                       {counters.retransmits, counters.timeouts, counters.out_of_order, bytes,
                        counters.received});
        }
        return all;
    }

    // Four numbers a flow, then the packets that hosts have sent, and ns-3's events.
    Ints Outcome() const {
        Ints all;
        for (const Flow& flow : traffic_->flows) {
            int64_t again = flow.sender ? flow.sender->retransmits() : 0;
            all.insert(all.end(), {flow.sent_ns, flow.end_ns, again, flow.status});
        }
        int64_t packets = 0;
        for (const auto& nics : nics_) {
            for (LinkDevice* nic : nics) {
                packets += static_cast<HostNic&>(nic->waiting()).tx_packets;
            }
        }
        all.push_back(packets);
        all.push_back(static_cast<int64_t>(ns3::Simulator::GetEventCount()));
        return all;
    }

    // New flowlet timeouts of some switches; then five numbers a switch.
    Ints Paths(const Ints& places, const Ints& timeouts_ns) {
        return choices_->Exchange(places, timeouts_ns, ns3::Simulator::Now().GetNanoSeconds());
    }

    // Of flows on RoCE NICs only.
    Ints FlowCounters() const { return {}; }

    // Bytes by pair of so many edge switches; it counts from the first time on.
    Ints Pairs(size_t edges) { return ReadPairs(switches_, edges); }

    FlowTable* table() { return table_.get(); }

  private:
    enum Scalar : size_t {
        SEED, MTU, FRAMING, BUCKET, MIN_RTO, SMALL_QUEUE, SEND_BUFFER, RECEIVE_BUFFER,
        OBSERVES_FLOWS,
    };
    int64_t scalar(Scalar which) const { return scalars_.at(which); }

    // Payload of a full segment: IPv4, TCP and timestamps are 52 bytes.
    int64_t segment_bytes() const { return scalar(MTU) - 52; }
    int64_t frame_bytes() const { return scalar(MTU) + ETHERNET_HEADER_BYTES; }

    void Defaults() const {
        auto set = [](const std::string& name, const std::string& value) {
            ns3::Config::SetDefault("ns3::" + name, ns3::StringValue(value));
        };
        std::string min_rto = std::to_string(scalar(MIN_RTO)) + "ns";
        set("TcpSocket::SegmentSize", std::to_string(segment_bytes()));
        set("TcpSocket::InitialCwnd", "10");
        set("TcpSocket::SndBufSize", std::to_string(scalar(SEND_BUFFER)));
        set("TcpSocket::RcvBufSize", std::to_string(scalar(RECEIVE_BUFFER)));
        set("TcpSocket::DelAckCount", "2");
        set("TcpSocket::DelAckTimeout", "40ms");
        set("TcpSocket::ConnTimeout", "1s");
        set("TcpSocket::DataRetries", "15");
        set("TcpSocket::TcpNoDelay", "true");
        set("TcpSocketBase::MinRto", min_rto);
        // Linux adds the deviation, or the minimum RTO if that is more, to the smoothed RTT.
        set("TcpSocketBase::ClockGranularity", min_rto);
        set("TcpSocketBase::MaxSegLifetime", "0.001");
        set("RttEstimator::InitialEstimation", "100us");
        ns3::RngSeedManager::SetSeed(1 + static_cast<uint32_t>(Mix(scalar(SEED)) >> 34));
    }

    static ns3::Ptr<ns3::Node> MakeNode(ns3::Ptr<Routing> routing) {
        auto node = ns3::CreateObject<ns3::Node>();
        auto ipv4 = ns3::CreateObject<ns3::Ipv4L3Protocol>();
        auto control = ns3::CreateObject<ns3::TrafficControlLayer>();
        auto arp = ns3::CreateObject<ns3::ArpL3Protocol>();
        node->AggregateObject(arp);
        node->AggregateObject(ipv4);
        node->AggregateObject(ns3::CreateObject<ns3::Icmpv4L4Protocol>());
        ipv4->SetRoutingProtocol(routing);
        node->AggregateObject(control);
        arp->SetTrafficControl(control);
        return node;
    }

    // Which devices are switches, and the seeds of their hashes.
    void BuildDevices(Request& request) {
        Ints is_switch = request.Next(), seeds = request.Next();
        choices_ = std::make_unique<Choices<LinkDevice>>(request, is_switch, scalar(SEED));
        for (size_t i = 0; i < is_switch.size(); ++i) {
            switches_.push_back(nullptr);
            host_routing_.push_back(nullptr);
            host_of_.push_back(nullptr);
            if (is_switch[i] != 0) {
                switches_[i] = ns3::CreateObject<SwitchRouting>(
                    static_cast<uint32_t>(seeds[i]), choices_->of(i), scalar(FRAMING));
                nodes_.push_back(MakeNode(switches_[i]));
                continue;
            }
            host_routing_[i] = ns3::CreateObject<HostRouting>();
            auto node = MakeNode(host_routing_[i]);
            auto host = std::make_unique<Host>();
            host->node = node;
            host->tcp = ns3::CreateObject<HostTcp>();
            node->AggregateObject(host->tcp);
            nodes_.push_back(node);
            host_of_[i] = host.get();
            hosts_.push_back(std::move(host));
            nics_.emplace_back();
        }
    }

    void BuildPorts(Request& request) {
        Ints device = request.Next(), peer = request.Next(), rate = request.Next(),
             delay = request.Next(), address = request.Next();
        Ints queue_port = request.Next(), queue_limit = request.Next(), quanta = request.Next();
        size_t host = 0;
        std::vector<size_t> number_of_host(nodes_.size(), 0);
        for (size_t i = 0; i < nodes_.size(); ++i) {
            number_of_host[i] = host;
            host += host_of_[i] != nullptr ? 1 : 0;
        }
        // A port's queues are neighbours in the order of all queues.
        std::vector<int64_t> first(device.size(), -1);
        std::vector<int64_t> count(device.size(), 0);
        for (size_t i = 0; i < queue_port.size(); ++i) {
            auto port = static_cast<size_t>(queue_port[i]);
            first[port] = first[port] < 0 ? static_cast<int64_t>(i) : first[port];
            ++count[port];
        }
        for (size_t port = 0; port < device.size(); ++port) {
            auto node = static_cast<size_t>(device[port]);
            std::unique_ptr<Waiting> waiting;
            if (host_of_[node] != nullptr) {
                waiting = std::make_unique<HostNic>(frame_bytes());
            } else {
                waiting = std::make_unique<SwitchQueues>(quanta, first[port], table_.get());
            }
            Shaper shaper(rate[port], scalar(BUCKET), scalar(FRAMING));
            ports_.push_back(ns3::CreateObject<LinkDevice>(
                std::move(waiting), shaper, delay[port], static_cast<uint16_t>(scalar(MTU))));
            choices_->Prepare(*ports_.back(), rate[port]);
            Attach(node, port, static_cast<uint32_t>(address[port]));
            if (host_of_[node] != nullptr) {
                nics_[number_of_host[node]].push_back(ns3::PeekPointer(ports_[port]));
            } else {
                AddQueues(port, first[port], count[port], queue_limit);
            }
        }
        for (size_t port = 0; port < device.size(); ++port) {
            auto other = static_cast<size_t>(peer[port]);
            ports_[port]->SetPeer(ns3::PeekPointer(ports_[other]));
            if (address[other] != 0 && switches_[static_cast<size_t>(device[port])]) {
                switches_[static_cast<size_t>(device[port])]->AddHost(
                    static_cast<uint32_t>(address[other]), ports_[port]->interface());
            }
        }
        queues_.resize(queue_port.size());
        for (size_t i = 0; i < queue_port.size(); ++i) {
            auto port = static_cast<size_t>(queue_port[i]);
            auto& waiting = static_cast<SwitchQueues&>(ports_[port]->waiting());
            queues_[i] = &waiting.queue(i - static_cast<size_t>(first[port]));
        }
    }

    void AddQueues(size_t port, int64_t first, int64_t count, const Ints& limit) {
        auto& waiting = static_cast<SwitchQueues&>(ports_[port]->waiting());
        for (int64_t i = first; i < first + count; ++i) {
            uint64_t seed = Mix(static_cast<uint64_t>(scalar(SEED))) + static_cast<uint64_t>(i);
            waiting.Add(seed, limit[static_cast<size_t>(i)]);
        }
    }

    // Gives a node its port as an IP interface, with an address if there is one.
    void Attach(size_t node, size_t port, uint32_t address) {
        nodes_[node]->AddDevice(ports_[port]);
        auto ipv4 = nodes_[node]->GetObject<ns3::Ipv4>();
        uint32_t interface = ipv4->AddInterface(ports_[port]);
        ports_[port]->SetInterface(interface);
        if (address != 0) {
            ns3::Ipv4Address own(address);
            ipv4->AddAddress(interface, ns3::Ipv4InterfaceAddress(own, ns3::Ipv4Mask::GetOnes()));
            host_routing_[node]->AddAddress(address, interface);
        }
        ipv4->SetUp(interface);
    }

    void ReadFlows(Request& request) {
        Ints start = request.Next(), size = request.Next(), source = request.Next(),
             destination = request.Next(), near_address = request.Next(),
             near_port = request.Next(), far_address = request.Next(), far_port = request.Next(),
             control = request.Next();
        traffic_->flows.reserve(start.size());
        for (size_t i = 0; i < start.size(); ++i) {
            Flow flow{};
            flow.start_ns = start[i];
            flow.size_bytes = size[i];
            flow.source = hosts_.at(static_cast<size_t>(source[i])).get();
            flow.destination = hosts_.at(static_cast<size_t>(destination[i])).get();
            flow.near_address = static_cast<uint32_t>(near_address[i]);
            flow.near_port = static_cast<uint16_t>(near_port[i]);
            flow.far_address = static_cast<uint32_t>(far_address[i]);
            flow.far_port = static_cast<uint16_t>(far_port[i]);
            flow.congestion_control = control[i];
            flow.sent_ns = flow.end_ns = -1;
            traffic_->flows.push_back(flow);
            if (table_) {
                table_->Add(flow.near_address, flow.near_port, destination[i], source[i]);
            }
        }
    }

    Ints scalars_;
    std::unique_ptr<Traffic> traffic_;
    std::unique_ptr<FlowTable> table_;
    std::unique_ptr<Choices<LinkDevice>> choices_;
    std::vector<ns3::Ptr<ns3::Node>> nodes_;
    std::vector<ns3::Ptr<SwitchRouting>> switches_;
    std::vector<ns3::Ptr<HostRouting>> host_routing_;
    std::vector<Host*> host_of_;
    std::vector<std::unique_ptr<Host>> hosts_;
    std::vector<std::vector<LinkDevice*>> nics_;
    std::vector<ns3::Ptr<LinkDevice>> ports_;
    std::vector<RedQueue*> queues_;
};

} // namespace closloop
