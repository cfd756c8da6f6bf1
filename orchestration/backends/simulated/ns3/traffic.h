// The schedule's flows: connected before time 0, each sent at its start, ended when acknowledged.
#pragma once

#include "congestion.h"
#include "host_socket.h"
#include "host_tcp.h"
#include "wire.h"

#include "ns3/inet-socket-address.h"
#include "ns3/node.h"
#include "ns3/simulator.h"
#include "ns3/tcp-cubic.h"
#include "ns3/tcp-linux-reno.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace closloop {

// As orchestration/core/status.py numbers them.
enum Status : int64_t { DONE = 0, UNFINISHED = 1, FAILED = 2 };

enum CongestionControl : int64_t { DCTCP = 0, RENO = 1, CUBIC = 2 };

// A host's part in the traffic.
struct Host {
    ns3::Ptr<ns3::Node> node;
    ns3::Ptr<HostTcp> tcp;
    HostCounters counters;
};

// One flow: a connection of its own. Addresses and ports are those of both its ends.
struct Flow {
    int64_t start_ns, size_bytes;
    Host *source, *destination;
    uint32_t near_address, far_address;
    uint16_t near_port, far_port;
    int64_t congestion_control;

    ns3::Ptr<HostSocket> sender, receiver;
    int64_t left_bytes = 0;
    int64_t sent_ns = -1, end_ns = -1;
    int64_t status = UNFINISHED;
};

class Traffic {
  public:
    explicit Traffic(int64_t small_queue_bytes) : small_queue_bytes_(small_queue_bytes) {}

    // The flows, sorted by start. To be filled before `Connect`.
    std::vector<Flow> flows;

    // Connects all flows and lets the fabric become idle. From then on the clock reads 0.
    void Connect() {
        for (Flow& flow : flows) {
            Listen(flow);
        }
        for (size_t i = 0; i < flows.size(); ++i) {
            ns3::Simulator::ScheduleWithContext(flows[i].source->node->GetId(),
                                                ns3::NanoSeconds(CONNECT_STEP_NS * (i + 1)),
                                                &Traffic::Open, this, &flows[i]);
        }
        int64_t last_ns = CONNECT_STEP_NS * static_cast<int64_t>(flows.size()) + PATIENCE_NS;
        while (connected_ < 2 * flows.size() && Clock() < last_ns) {
            RunFor(SETTLE_NS);
        }
        if (connected_ < 2 * flows.size()) {
            Fail("a flow gets no connection");
        }
        RunFor(SETTLE_NS);
        zero_ns_ = Clock();
        if (!flows.empty()) {
            ns3::Simulator::Schedule(ns3::NanoSeconds(flows[0].start_ns), &Traffic::Begin, this);
        }
    }

    // ns since time 0.
    int64_t Now() const { return Clock() - zero_ns_; }

    // Lets time pass until `t_ns`.
    void RunUntil(int64_t t_ns) { RunFor(t_ns - Now()); }

    int64_t ended() const { return ended_; }

  private:
    // Handshakes do not meet in queues; the slowest path of any testbed is shorter than the wait.
    static constexpr int64_t CONNECT_STEP_NS = 1'000;
    static constexpr int64_t SETTLE_NS = 1'000'000;
    static constexpr int64_t PATIENCE_NS = 10'000'000'000;
    // So much is handed to TCP at once, as the socket driver does.
    static constexpr int64_t SEND_BYTES = 1 << 19;

    static int64_t Clock() { return ns3::Simulator::Now().GetNanoSeconds(); }

    static void RunFor(int64_t ns) {
        if (ns > 0) {
            ns3::Simulator::Stop(ns3::NanoSeconds(ns));
            ns3::Simulator::Run();
        }
    }

    ns3::Ptr<HostSocket> Make(Host& host, int64_t congestion_control) {
        auto socket = ns3::CreateObject<HostSocket>();
        socket->SetNode(host.node);
        socket->SetTcp(host.tcp);
        socket->SetRtt(ns3::CreateObject<ns3::RttMeanDeviation>());
        if (congestion_control == DCTCP) {
            auto dctcp = ns3::CreateObject<LinuxDctcp>();
            socket->Watch(ns3::PeekPointer(dctcp));
            socket->SetCongestionControlAlgorithm(dctcp);
        } else if (congestion_control == RENO) {
            socket->SetCongestionControlAlgorithm(ns3::CreateObject<ns3::TcpLinuxReno>());
        } else {
            socket->SetCongestionControlAlgorithm(ns3::CreateObject<ns3::TcpCubic>());
        }
        socket->SetRecoveryAlgorithm(ns3::CreateObject<LinuxReduction>());
        socket->Configure(&host.counters, small_queue_bytes_);
        host.tcp->AddSocket(socket);
        return socket;
    }

    // Opens the socket at which a host takes the flows of a class, once.
    void Listen(const Flow& flow) {
        ns3::Ptr<HostSocket>& listener = listeners_[{flow.destination, flow.far_port}];
        if (!listener) {
            listener = Make(*flow.destination, flow.congestion_control);
            listener->Bind(ns3::InetSocketAddress(ns3::Ipv4Address::GetAny(), flow.far_port));
            listener->Listen();
            listener->SetAcceptCallback(
                ns3::MakeNullCallback<bool, ns3::Ptr<ns3::Socket>, const ns3::Address&>(),
                ns3::MakeCallback(&Traffic::Accepted, this));
        }
        by_near_[Key(flow.near_address, flow.near_port)] =
            static_cast<size_t>(&flow - flows.data());
    }

    void Open(Flow* flow) {
        flow->sender = Make(*flow->source, flow->congestion_control);
        flow->sender->Bind(
            ns3::InetSocketAddress(ns3::Ipv4Address(flow->near_address), flow->near_port));
        flow->sender->SetConnectCallback(
            ns3::MakeCallback(&Traffic::Connected, this),
            ns3::MakeNullCallback<void, ns3::Ptr<ns3::Socket>>());
        flow->sender->Connect(
            ns3::InetSocketAddress(ns3::Ipv4Address(flow->far_address), flow->far_port));
        flow->source->tcp->Know(flow->far_address, flow->far_port, flow->near_port,
                                ns3::PeekPointer(flow->sender));
    }

    void Connected(ns3::Ptr<ns3::Socket>) { ++connected_; }

    void Accepted(ns3::Ptr<ns3::Socket> socket, const ns3::Address& from) {
        auto near = ns3::InetSocketAddress::ConvertFrom(from);
        Flow& flow = flows[by_near_.at(Key(near.GetIpv4().Get(), near.GetPort()))];
        flow.receiver = ns3::DynamicCast<HostSocket>(socket);
        flow.destination->tcp->Know(flow.near_address, flow.near_port, flow.far_port,
                                    ns3::PeekPointer(flow.receiver));
        socket->SetRecvCallback(ns3::MakeCallback(&Traffic::Read));
        socket->SetCloseCallbacks(ns3::MakeCallback(&Traffic::Close),
                                  ns3::MakeNullCallback<void, ns3::Ptr<ns3::Socket>>());
        ++connected_;
    }

    static void Read(ns3::Ptr<ns3::Socket> socket) {
        while (socket->GetRxAvailable() > 0) {
            socket->Recv();
        }
    }

    static void Close(ns3::Ptr<ns3::Socket> socket) {
        Read(socket);
        socket->Close();
    }

    // Starts the flows that are due, and comes back for the next one.
    void Begin() {
        while (begun_ < flows.size() && flows[begun_].start_ns <= Now()) {
            Flow* flow = &flows[begun_++];
            flow->left_bytes = flow->size_bytes;
            flow->sent_ns = Now();
            flow->sender->OnAllAcknowledged([this, flow] { End(*flow, DONE); });
            flow->sender->SetCloseCallbacks(
                ns3::MakeNullCallback<void, ns3::Ptr<ns3::Socket>>(),
                ns3::MakeCallback(&Traffic::Broken, this).Bind(flow));
            flow->sender->SetSendCallback(ns3::MakeCallback(&Traffic::Fill, this).Bind(flow));
            Push(*flow);
        }
        if (begun_ < flows.size()) {
            ns3::Simulator::Schedule(ns3::NanoSeconds(flows[begun_].start_ns - Now()),
                                     &Traffic::Begin, this);
        }
    }

    void Fill(Flow* flow, ns3::Ptr<ns3::Socket>, uint32_t) { Push(*flow); }

    // Hands over what there is room for, and the end of the stream with the last of it.
    void Push(Flow& flow) {
        while (flow.left_bytes > 0) {
            int64_t room = flow.sender->GetTxAvailable();
            int64_t piece = std::min({flow.left_bytes, SEND_BYTES, room});
            if (piece < std::min(flow.left_bytes, SEND_BYTES)) {
                return;
            }
            flow.left_bytes -= piece;
            flow.sender->Send(ns3::Create<ns3::Packet>(static_cast<uint32_t>(piece)), 0);
            if (flow.left_bytes == 0) {
                flow.sender->Close();
            }
        }
    }

    void Broken(Flow* flow, ns3::Ptr<ns3::Socket>) { End(*flow, FAILED); }

    void End(Flow& flow, int64_t status) {
        if (flow.status == UNFINISHED && (status == FAILED || flow.left_bytes == 0)) {
            flow.status = status;
            flow.end_ns = status == DONE ? Now() : -1;
            ++ended_;
        }
    }

    static uint64_t Key(uint32_t address, uint16_t port) {
        return uint64_t{address} << 16 | port;
    }

    int64_t small_queue_bytes_;
    std::map<std::pair<Host*, uint16_t>, ns3::Ptr<HostSocket>> listeners_;
    std::unordered_map<uint64_t, size_t> by_near_;
    size_t connected_ = 0, begun_ = 0;
    int64_t ended_ = 0, zero_ns_ = 0;
};

} // namespace closloop
