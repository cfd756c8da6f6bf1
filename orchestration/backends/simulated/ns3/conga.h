// CONGA between switches of a tier: Alizadeh et al., SIGCOMM 2014, section 3; docs/load-balancing.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>

namespace closloop::conga {

constexpr uint8_t NO_TAG = 15, MOST_METRIC = 7;

// What a packet carries for the switches of one tier: by which port it left the first of them, the
// highest metric of the links since, and one that the other direction has reported.
struct Field {
    uint8_t tag = NO_TAG, metric = 0;
    uint8_t fed_tag = NO_TAG, fed_metric = 0;
};

// Of edges, and of the switches above them.
using Header = std::array<Field, 2>;

// The discounting rate estimator of a link.
class Load {
  public:
    void Set(int64_t rate_bps, int64_t dre_time_ns) {
        step_ns_ = dre_time_ns / 8;
        unit_bytes_ = std::max<int64_t>(1, rate_bps * (dre_time_ns / 8) / 8'000'000'000);
    }

    void Add(int64_t bytes, int64_t now_ns) {
        Fade(now_ns);
        bytes_ += bytes;
    }

    uint8_t Metric(int64_t now_ns) {
        Fade(now_ns);
        return static_cast<uint8_t>(std::min<int64_t>(bytes_ / unit_bytes_, MOST_METRIC));
    }

  private:
    void Fade(int64_t now_ns) {
        int64_t step = now_ns / step_ns_;
        // below 8 bytes an eighth is nothing
        for (; last_step_ < step && bytes_ >= 8; ++last_step_) {
            bytes_ -= bytes_ / 8;
        }
        last_step_ = step;
    }

    int64_t step_ns_ = 1, unit_bytes_ = 1, last_step_ = 0, bytes_ = 0;
};

// What a switch knows of the paths to and from its partners, the switches of its tier.
class Tables {
  public:
    explicit Tables(int64_t age_ns) : age_ns_(age_ns) {}

    // A packet from a partner has come to the end of its path.
    void Take(int64_t partner, const Field& field, int64_t now_ns) {
        Partner& known = partners_[partner];
        if (field.tag != NO_TAG) {
            Heard& heard = known.from[field.tag];
            bool is_new = !heard.is_known || heard.metric != field.metric;
            heard = {field.metric, true, heard.is_news || is_new};
        }
        if (field.fed_tag != NO_TAG) {
            known.to[field.fed_tag] = {field.fed_metric, now_ns};
        }
    }

    // What a packet to a partner carries, by the port that has this tag.
    Field Label(int64_t partner, uint8_t tag) {
        Partner& known = partners_[partner];
        Field field{tag, 0, NO_TAG, 0};
        if (uint8_t next = Next(known); next != NO_TAG) {
            known.from[next].is_news = false;
            known.last = next;
            field.fed_tag = next;
            field.fed_metric = known.from[next].metric;
        }
        return field;
    }

    // The metric of the path to a partner behind the port that has this tag.
    uint8_t Behind(int64_t partner, uint8_t tag, int64_t now_ns) const {
        auto found = partners_.find(partner);
        if (found == partners_.end() || tag == NO_TAG) {
            return 0;
        }
        const Told& told = found->second.to[tag];
        int64_t late_ns = now_ns - told.at_ns - age_ns_;
        int64_t faded = late_ns <= 0 ? 0 : 1 + late_ns / 1'000'000;
        return static_cast<uint8_t>(std::max<int64_t>(0, told.metric - faded));
    }

  private:
    struct Heard {
        uint8_t metric = 0;
        bool is_known = false, is_news = false;
    };
    struct Told {
        uint8_t metric = 0;
        int64_t at_ns = 0;
    };
    struct Partner {
        std::array<Heard, NO_TAG> from;
        std::array<Told, NO_TAG> to;
        uint8_t last = 0; // that was reported
    };

    // The next tag in turn of which there is news, or else that is known at all.
    static uint8_t Next(const Partner& partner) {
        uint8_t known = NO_TAG;
        for (uint8_t step = 1; step <= NO_TAG; ++step) {
            auto tag = static_cast<uint8_t>((partner.last + step) % NO_TAG);
            if (partner.from[tag].is_news) {
                return tag;
            }
            known = known == NO_TAG && partner.from[tag].is_known ? tag : known;
        }
        return known;
    }

    int64_t age_ns_;
    std::unordered_map<int64_t, Partner> partners_;
};

} // namespace closloop::conga
