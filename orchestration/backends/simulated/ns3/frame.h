// What a device needs to know of a packet: its length as Linux counts it, its ends, its ECN field.
#pragma once

#include "ns3/ipv4-header.h"
#include "ns3/packet.h"

#include <cstdint>

namespace closloop {

constexpr uint32_t ETHERNET_HEADER_BYTES = 14;
constexpr uint16_t FIRST_LISTEN_PORT = 5000;
constexpr uint16_t MAX_CLASSES = 4;

// A packet in a queue, with its length on Ethernet, checksum and framing apart.
struct Frame {
    ns3::Ptr<ns3::Packet> packet;
    uint32_t bytes = 0;

    Frame() = default;
    explicit Frame(ns3::Ptr<ns3::Packet> p)
        : packet(p), bytes(p->GetSize() + ETHERNET_HEADER_BYTES) {}
};

// The ends of a TCP connection as a packet has them, and its payload in bytes.
struct Ends {
    uint32_t source, destination;
    uint16_t source_port, destination_port;
    uint32_t payload_bytes;

    explicit Ends(const ns3::Packet& packet) {
        uint8_t head[33] = {};
        packet.CopyData(head, sizeof head); // IPv4 without options, then TCP up to its length
        source = Word(head + 12);
        destination = Word(head + 16);
        source_port = Half(head + 20);
        destination_port = Half(head + 22);
        uint32_t headers = 20 + 4 * (head[32] >> 4);
        payload_bytes = packet.GetSize() > headers ? packet.GetSize() - headers : 0;
    }

    // A traffic class listens at a port of its own, and answers from it.
    unsigned Class() const {
        unsigned to = static_cast<unsigned>(destination_port) - FIRST_LISTEN_PORT;
        unsigned from = static_cast<unsigned>(source_port) - FIRST_LISTEN_PORT;
        return to < MAX_CLASSES ? to : from < MAX_CLASSES ? from : 0;
    }

  private:
    static uint32_t Word(const uint8_t* at) {
        return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
    }
    static uint16_t Half(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }
};

// Marks a packet CE if its sender understands marks; says whether it now has one.
inline bool SetCe(ns3::Packet& packet) {
    uint8_t head[2];
    packet.CopyData(head, sizeof head);
    unsigned ecn = head[1] & 3;
    if (ecn == 0 || ecn == 3) {
        return ecn == 3;
    }
    ns3::Ipv4Header header;
    packet.RemoveHeader(header);
    header.SetEcn(ns3::Ipv4Header::ECN_CE);
    packet.AddHeader(header);
    return true;
}

} // namespace closloop
