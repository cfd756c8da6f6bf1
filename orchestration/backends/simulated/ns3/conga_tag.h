// What CONGA writes into packets of ns-3: a tag, since the frames of a testbed have no room for it.
#pragma once

#include "conga.h"

#include "ns3/packet.h"
#include "ns3/tag.h"

#include <ostream>

namespace closloop {

class CongaTag : public ns3::Tag {
  public:
    static ns3::TypeId GetTypeId() {
        static ns3::TypeId id = ns3::TypeId("closloop::CongaTag")
                                    .SetParent<ns3::Tag>()
                                    .AddConstructor<CongaTag>();
        return id;
    }

    conga::Header header{};

    ns3::TypeId GetInstanceTypeId() const override { return GetTypeId(); }
    uint32_t GetSerializedSize() const override { return 4 * header.size(); }
    void Serialize(ns3::TagBuffer to) const override {
        for (const conga::Field& field : header) {
            for (uint8_t byte : {field.tag, field.metric, field.fed_tag, field.fed_metric}) {
                to.WriteU8(byte);
            }
        }
    }
    void Deserialize(ns3::TagBuffer from) override {
        for (conga::Field& field : header) {
            for (uint8_t* byte : {&field.tag, &field.metric, &field.fed_tag, &field.fed_metric}) {
                *byte = from.ReadU8();
            }
        }
    }
    void Print(std::ostream& to) const override { to << "CONGA"; }
};

} // namespace closloop
