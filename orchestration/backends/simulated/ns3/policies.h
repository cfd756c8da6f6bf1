// The flows' congestion controls: the C sources that the emulated fabric's NICs run, too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
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

// A policy of a library, in place of the one that the trial names; null for none.
inline const cl_policy* from_library = nullptr;
inline void (*written)() = nullptr;

inline const cl_policy* Numbered(size_t number) {
    return from_library != nullptr ? from_library : ALL.at(number);
}

// Loads a library that has a policy, `cl_policy_traced`, and writes about its flows: `begin` is told
// `text`, and `written` is called whenever the program answers.
inline bool Load(const char* path, const char* text) {
    void* library = ::dlopen(path, RTLD_NOW);
    if (library == nullptr) {
        return false;
    }
    auto begin = reinterpret_cast<void (*)(const char*)>(::dlsym(library, "begin"));
    written = reinterpret_cast<void (*)()>(::dlsym(library, "written"));
    from_library = static_cast<const cl_policy*>(::dlsym(library, "cl_policy_traced"));
    if (begin == nullptr || written == nullptr || from_library == nullptr) {
        return false;
    }
    begin(text);
    return true;
}

inline void Written() {
    if (written != nullptr) {
        written();
    }
}

} // namespace closloop::policies
