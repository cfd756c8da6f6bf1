// The flows' congestion controls: the C sources that the emulated fabric's NICs run, too.
#pragma once

#include <array>
#include <cstdint>
#include <stdint.h> // here, so that policy.h does not bring it into the namespace

namespace closloop::policies {

extern "C" {
#include "policy.h"
// Those of policy_<name>.c, in the order in which program.py lists the sources.
#define CLOSLOOP_DECLARE(name) extern const struct cl_policy cl_policy_##name;
CLOSLOOP_POLICIES(CLOSLOOP_DECLARE)
#undef CLOSLOOP_DECLARE
}

#define CLOSLOOP_ADDRESS(name) &cl_policy_##name,
inline const std::array ALL{CLOSLOOP_POLICIES(CLOSLOOP_ADDRESS)};
#undef CLOSLOOP_ADDRESS

} // namespace closloop::policies
