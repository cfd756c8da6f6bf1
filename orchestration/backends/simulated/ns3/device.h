// One end of a link: a NetDevice that waits, sends at line rate, and reaches the other end.
#pragma once

#include "conga.h"
#include "frame.h"
#include "shaper.h"
#include "waiting.h"

#include "ns3/channel.h"
#include "ns3/mac48-address.h"
#include "ns3/net-device.h"
#include "ns3/node.h"
#include "ns3/simulator.h"

#include <memory>

namespace closloop {

// A frame reaches the peer `delay` after it was begun to be sent, and the link is taken for as long
// as it lasts, framing included: cut-through, as in the emulated fabric and in a testbed's base RTT.
class LinkDevice : public ns3::NetDevice {
  public:
    static ns3::TypeId GetTypeId() {
        static ns3::TypeId id = ns3::TypeId("closloop::LinkDevice").SetParent<ns3::NetDevice>();
        return id;
    }

    LinkDevice(std::unique_ptr<Waiting> waiting, Shaper shaper, int64_t delay_ns, uint16_t mtu)
        : waiting_(std::move(waiting)), shaper_(shaper), delay_(ns3::NanoSeconds(delay_ns)),
          mtu_(mtu), address_(ns3::Mac48Address::Allocate()) {}

    void SetPeer(LinkDevice* peer) { peer_ = peer; }

    // A cut cable drops what arrives at its ends.
    void SetCut(bool cut) { cut_ = cut; }
    bool is_cut() const { return cut_; }

    // Its number among the interfaces of its node's IP.
    void SetInterface(uint32_t interface) { interface_ = interface; }
    uint32_t interface() const { return interface_; }

    int64_t waiting_bytes() const { return waiting_->bytes(); }
    conga::Load& load() { return load_; }

    Waiting& waiting() { return *waiting_; }

    bool Send(ns3::Ptr<ns3::Packet> packet, const ns3::Address&, uint16_t) override {
        ip_bytes_ += packet->GetSize();
        waiting_->Put(Frame(packet));
        Pump();
        return true;
    }

    // Bytes that IP has handed down so far.
    int64_t ip_bytes() const { return ip_bytes_; }

    void SetIfIndex(const uint32_t index) override { index_ = index; }
    uint32_t GetIfIndex() const override { return index_; }
    ns3::Ptr<ns3::Channel> GetChannel() const override { return nullptr; }
    void SetAddress(ns3::Address address) override {
        address_ = ns3::Mac48Address::ConvertFrom(address);
    }
    ns3::Address GetAddress() const override { return address_; }
    bool SetMtu(const uint16_t mtu) override {
        mtu_ = mtu;
        return true;
    }
    uint16_t GetMtu() const override { return mtu_; }
    bool IsLinkUp() const override { return true; }
    void AddLinkChangeCallback(ns3::Callback<void>) override {}
    bool IsBroadcast() const override { return true; }
    ns3::Address GetBroadcast() const override { return ns3::Mac48Address::GetBroadcast(); }
    bool IsMulticast() const override { return false; }
    ns3::Address GetMulticast(ns3::Ipv4Address) const override { return GetBroadcast(); }
    ns3::Address GetMulticast(ns3::Ipv6Address) const override { return GetBroadcast(); }
    bool IsBridge() const override { return false; }
    bool IsPointToPoint() const override { return true; }
    bool SendFrom(ns3::Ptr<ns3::Packet> packet, const ns3::Address&, const ns3::Address& to,
                  uint16_t protocol) override {
        return Send(packet, to, protocol);
    }
    ns3::Ptr<ns3::Node> GetNode() const override { return node_; }
    void SetNode(ns3::Ptr<ns3::Node> node) override { node_ = node; }
    bool NeedsArp() const override { return false; }
    void SetReceiveCallback(ReceiveCallback callback) override { receive_ = callback; }
    void SetPromiscReceiveCallback(PromiscReceiveCallback) override {}
    bool SupportsSendFrom() const override { return false; }

  private:
    // Sends all that the shaper lets through, and comes back when it lets the next one.
    void Pump() {
        if (pumping_ || asleep_) {
            return;
        }
        pumping_ = true;
        while (uint32_t bytes = waiting_->NextBytes()) {
            int64_t wait_ns = shaper_.Take(bytes, ns3::Simulator::Now().GetNanoSeconds());
            if (wait_ns > 0) {
                asleep_ = true;
                ns3::Simulator::Schedule(ns3::NanoSeconds(wait_ns), &LinkDevice::Wake, this);
                break;
            }
            Frame frame = waiting_->Get();
            ns3::Simulator::ScheduleWithContext(peer_->node_->GetId(), delay_, &LinkDevice::Arrive,
                                                peer_, frame.packet);
            waiting_->Sent();
        }
        pumping_ = false;
    }

    void Wake() {
        asleep_ = false;
        Pump();
    }

    void Arrive(ns3::Ptr<ns3::Packet> packet) {
        if (!cut_) {
            constexpr uint16_t ipv4 = 0x0800;
            receive_(this, packet, ipv4, peer_->address_);
        }
    }

    std::unique_ptr<Waiting> waiting_;
    Shaper shaper_;
    ns3::Time delay_;
    uint16_t mtu_;
    ns3::Mac48Address address_;
    ns3::Ptr<ns3::Node> node_;
    LinkDevice* peer_ = nullptr;
    ReceiveCallback receive_;
    uint32_t index_ = 0;
    int64_t ip_bytes_ = 0;
    uint32_t interface_ = 0;
    conga::Load load_;
    bool cut_ = false, pumping_ = false, asleep_ = false;
};

} // namespace closloop
