// A host's TCP layer: finds a packet's connection in a table; ns-3 searches a list.
#pragma once

#include "frame.h"
#include "host_socket.h"

#include "ns3/ipv4-interface.h"
#include "ns3/tcp-l4-protocol.h"

#include <cstdint>
#include <unordered_map>

namespace closloop {

class HostTcp : public ns3::TcpL4Protocol {
  public:
    static ns3::TypeId GetTypeId() {
        static ns3::TypeId id = ns3::TypeId("closloop::HostTcp")
                                    .SetParent<ns3::TcpL4Protocol>()
                                    .AddConstructor<HostTcp>();
        return id;
    }

    // Notes an established connection by the far end's address and both ports.
    void Know(uint32_t far_address, uint16_t far_port, uint16_t own_port, HostSocket* socket) {
        known_[Key(far_address, far_port, own_port)] = socket;
    }

    ns3::IpL4Protocol::RxStatus Receive(ns3::Ptr<ns3::Packet> packet, const ns3::Ipv4Header& header,
                                        ns3::Ptr<ns3::Ipv4Interface> interface) override {
        uint8_t ports[4] = {};
        packet->CopyData(ports, sizeof ports);
        auto from = static_cast<uint16_t>(ports[0] << 8 | ports[1]);
        auto to = static_cast<uint16_t>(ports[2] << 8 | ports[3]);
        auto found = known_.find(Key(header.GetSource().Get(), from, to));
        if (found == known_.end()) {
            return TcpL4Protocol::Receive(packet, header, interface);
        }
        found->second->Take(packet, header, from, interface);
        return ns3::IpL4Protocol::RX_OK;
    }

  private:
    static uint64_t Key(uint32_t address, uint16_t far_port, uint16_t own_port) {
        return uint64_t{address} << 32 | uint64_t{far_port} << 16 | own_port;
    }

    std::unordered_map<uint64_t, HostSocket*> known_;
};

} // namespace closloop
