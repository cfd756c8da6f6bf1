// When what a policy decides takes effect: later than the event that it answers, if that takes time.
#pragma once

#include "policies.h"
#include "roce_flow.h"
#include "roce_packet.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace closloop::roce {

// The decisions of a NIC's flows. `changed` is called when one has taken effect.
class Deciding {
  public:
    Deciding(const Settings* settings, const Clock* clock,
             std::function<void(Flow&, int64_t)> changed)
        : settings_(settings), clock_(clock), changed_(std::move(changed)) {}

    // Whether the policy hears of an event, or is busy with another one.
    bool Hears(Flow& flow, policies::cl_event_kind event, int64_t now_ps) {
        return settings_->decision_latency_ps == 0 ||
               settings_->decisions == Decisions::PIPELINED || event == policies::CL_START ||
               event == policies::CL_SETTLE || event == policies::CL_CHANGED ||
               now_ps >= BusyUntil(flow);
    }

    // Takes what the policy has answered to an event; before, it was at `rate_bps` and
    // `window_bytes`. What a flow starts with it has at once.
    void Take(Flow& flow, uint64_t rate_bps, uint32_t window_bytes, int64_t now_ps) {
        const policies::cl_flow_state& state = flow.state;
        if (settings_->decision_latency_ps == 0 || state.event == policies::CL_START) {
            flow.rate_bps = state.rate_bps;
            flow.window_bytes = state.window_bytes;
        } else if (state.rate_bps != rate_bps || state.window_bytes != window_bytes) {
            int64_t at_ps = now_ps + settings_->decision_latency_ps;
            made_.push_back({at_ps, state.rate_bps, state.window_bytes, &flow});
            BusyUntil(flow) = at_ps;
            clock_->At(at_ps, &due_);
        }
    }

  private:
    struct Decision {
        int64_t at_ps;
        uint64_t rate_bps;
        uint32_t window_bytes;
        Flow* flow;
    };

    int64_t& BusyUntil(Flow& flow) {
        return settings_->decisions == Decisions::SERIAL ? busy_until_ps_ : flow.busy_until_ps;
    }

    void Due() {
        while (!made_.empty() && made_.front().at_ps <= clock_->Now()) {
            Decision made = made_.front();
            made_.pop_front();
            made.flow->rate_bps = made.rate_bps;
            made.flow->window_bytes = made.window_bytes;
            changed_(*made.flow, made.at_ps);
        }
    }

    const Settings* settings_;
    const Clock* clock_;
    std::function<void(Flow&, int64_t)> changed_;
    std::deque<Decision> made_; // that have not taken effect
    int64_t busy_until_ps_ = 0;
    Call<Deciding, &Deciding::Due> due_{this};
};

} // namespace closloop::roce
