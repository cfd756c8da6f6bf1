// Routing: switches hash flows over equal-cost ports, hosts send from the NIC of their address.
#pragma once

#include "conga_tag.h"
#include "device.h"
#include "ecmp_hash.h"
#include "pairs.h"
#include "path_choice.h"

#include "ns3/ipv4-route.h"
#include "ns3/ipv4-routing-protocol.h"
#include "ns3/ipv4.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace closloop {

// The part of an Ipv4RoutingProtocol that both have in common.
class Routing : public ns3::Ipv4RoutingProtocol {
  public:
    static ns3::TypeId GetTypeId() {
        static ns3::TypeId id = ns3::TypeId("closloop::Routing").SetParent<Ipv4RoutingProtocol>();
        return id;
    }
    void NotifyInterfaceUp(uint32_t) override {}
    void NotifyInterfaceDown(uint32_t) override {}
    void NotifyAddAddress(uint32_t, ns3::Ipv4InterfaceAddress) override {}
    void NotifyRemoveAddress(uint32_t, ns3::Ipv4InterfaceAddress) override {}
    void SetIpv4(ns3::Ptr<ns3::Ipv4> ipv4) override { ipv4_ = ipv4; }
    void PrintRoutingTable(ns3::Ptr<ns3::OutputStreamWrapper>,
                           ns3::Time::Unit) const override {}

  protected:
    // The route out of an interface, made once.
    ns3::Ptr<ns3::Ipv4Route> Out(uint32_t interface) {
        if (routes_.size() <= interface) {
            routes_.resize(interface + 1);
        }
        if (!routes_[interface]) {
            routes_[interface] = ns3::Create<ns3::Ipv4Route>();
            routes_[interface]->SetGateway(ns3::Ipv4Address::GetAny());
            routes_[interface]->SetOutputDevice(ipv4_->GetNetDevice(interface));
        }
        return routes_[interface];
    }

    ns3::Ptr<ns3::Ipv4> ipv4_;

  private:
    std::vector<ns3::Ptr<ns3::Ipv4Route>> routes_;
};

// A switch: hosts of its own by address, those of other switches by the address' second octet.
class SwitchRouting : public Routing {
  public:
    using Ports = PathChoice<LinkDevice>::Ports;

    // `choice` is null where flows take the paths of their hash. `framing_bytes` is what a frame has
    // on a link besides itself.
    SwitchRouting(uint32_t seed, PathChoice<LinkDevice>* choice, int64_t framing_bytes)
        : hash_(seed), choice_(choice), framing_bytes_(framing_bytes) {}

    void AddHost(uint32_t address, uint32_t interface) {
        hosts_[address] = interface;
        pairs_.Owns(address);
    }
    PairCounter& pairs() { return pairs_; }

    // Ports towards the switch number `target`; none makes it unreachable.
    void SetPaths(size_t target, Ports ports) {
        if (paths_.size() <= target) {
            paths_.resize(target + 1);
        }
        if (choice_ != nullptr && paths_[target] != ports) {
            choice_->Forget();
        }
        paths_[target] = std::move(ports);
    }
    const Ports& paths(size_t target) const { return paths_.at(target); }

    ns3::Ptr<ns3::Ipv4Route> RouteOutput(ns3::Ptr<ns3::Packet>, const ns3::Ipv4Header&,
                                         ns3::Ptr<ns3::NetDevice>,
                                         ns3::Socket::SocketErrno& error) override {
        error = ns3::Socket::ERROR_NOROUTETOHOST; // a switch sends nothing of its own
        return nullptr;
    }

    bool RouteInput(ns3::Ptr<const ns3::Packet> packet, const ns3::Ipv4Header& header,
                    ns3::Ptr<const ns3::NetDevice>, const UnicastForwardCallback& forward,
                    const MulticastForwardCallback&, const LocalDeliverCallback&,
                    const ErrorCallback&) override {
        uint32_t to = header.GetDestination().Get();
        if (choice_ != nullptr && choice_->is_conga()) {
            header_ = Unlabel(*packet);
            choice_->Arrived(header_, EdgeOf(header.GetSource().Get()), Now());
        }
        auto host = hosts_.find(to);
        if (host != hosts_.end()) {
            forward(Out(host->second), packet, header);
            return true;
        }
        size_t target = EdgeOf(to);
        if (target >= paths_.size() || paths_[target].empty()) {
            return false;
        }
        if (pairs_.counts()) {
            pairs_.Count(header.GetSource().Get(), to, packet->GetSize() + IP_HEADER_BYTES);
        }
        const Ports& paths = paths_[target];
        LinkDevice* out = paths.front();
        if (paths.size() > 1) {
            FiveTuple tuple = Tuple(*packet, header);
            out = paths[EcmpHash::Choose(hash_(tuple), paths.size())];
            if (choice_ != nullptr) {
                out = choice_->Choose(FlowKey(tuple), target, paths, out, Now());
            }
        }
        if (choice_ != nullptr && choice_->is_conga()) {
            Label(*packet, target, out);
        }
        forward(Out(out->interface()), packet, header);
        return true;
    }

  private:
    static constexpr int64_t IP_HEADER_BYTES = 20; // its header is off while IP asks

    static int64_t Now() { return ns3::Simulator::Now().GetNanoSeconds(); }

    // What a packet carries for CONGA, taken off it.
    static conga::Header Unlabel(const ns3::Packet& packet) {
        CongaTag tag;
        const_cast<ns3::Packet&>(packet).RemovePacketTag(tag);
        return tag.header;
    }

    // A packet leaves for another switch.
    void Label(const ns3::Packet& packet, size_t target, LinkDevice* out) {
        CongaTag tag;
        tag.header = header_;
        int64_t bytes = packet.GetSize() + IP_HEADER_BYTES + ETHERNET_HEADER_BYTES + framing_bytes_;
        choice_->Leaves(tag.header, target, out, bytes, Now());
        packet.AddPacketTag(tag);
    }

    // IP takes its header off before it asks: the ports come first.
    static FiveTuple Tuple(const ns3::Packet& packet, const ns3::Ipv4Header& header) {
        uint8_t ports[4] = {};
        packet.CopyData(ports, sizeof ports);
        FiveTuple tuple{};
        header.GetSource().Serialize(tuple.source.data());
        header.GetDestination().Serialize(tuple.destination.data());
        tuple.source_port = {ports[0], ports[1]};
        tuple.destination_port = {ports[2], ports[3]};
        tuple.protocol = header.GetProtocol();
        return tuple;
    }

    EcmpHash hash_;
    PathChoice<LinkDevice>* choice_;
    int64_t framing_bytes_;
    conga::Header header_; // of the packet that is being routed
    PairCounter pairs_;
    std::unordered_map<uint32_t, uint32_t> hosts_;
    std::vector<Ports> paths_;
};

// A host: what has a NIC's address leaves through it, all else through the first NIC.
class HostRouting : public Routing {
  public:
    void AddAddress(uint32_t address, uint32_t interface) { nics_[address] = interface; }

    ns3::Ptr<ns3::Ipv4Route> RouteOutput(ns3::Ptr<ns3::Packet>, const ns3::Ipv4Header& header,
                                         ns3::Ptr<ns3::NetDevice>,
                                         ns3::Socket::SocketErrno& error) override {
        auto nic = nics_.find(header.GetSource().Get());
        uint32_t interface = nic == nics_.end() ? 1 : nic->second;
        ns3::Ptr<ns3::Ipv4Route> route = Out(interface);
        route->SetSource(ipv4_->GetAddress(interface, 0).GetLocal());
        error = ns3::Socket::ERROR_NOTERROR;
        return route;
    }

    bool RouteInput(ns3::Ptr<const ns3::Packet> packet, const ns3::Ipv4Header& header,
                    ns3::Ptr<const ns3::NetDevice> device, const UnicastForwardCallback&,
                    const MulticastForwardCallback&, const LocalDeliverCallback& deliver,
                    const ErrorCallback&) override {
        if (nics_.count(header.GetDestination().Get()) == 0) {
            return false; // hosts never forward
        }
        deliver(packet, header, ipv4_->GetInterfaceForDevice(device));
        return true;
    }

  private:
    std::unordered_map<uint32_t, uint32_t> nics_;
};

} // namespace closloop
