"""Congestion controls compiled from the guest's sources, for tests: what policy.h declares."""

import ctypes
import subprocess
from pathlib import Path

from orchestration import datapath as data_path

HEADERS = Path(data_path.__file__).parent
START, TX, ACK, NACK, CNP, TIMEOUT, RTT, SETTLE, CHANGED = range(9)
OWN_WORDS, MAX_PARAMETERS, MAX_HOPS = 24, 24, 8
US = 1_000


class State(ctypes.Structure):
    _fields_ = [
        ("now_ns", ctypes.c_uint64),
        ("rate_bps", ctypes.c_uint64),
        ("line_bps", ctypes.c_uint64),
        ("rtt_ns", ctypes.c_uint64),
        ("event", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("sent_bytes", ctypes.c_uint64),
        ("acked_bytes", ctypes.c_uint64),
        ("window_bytes", ctypes.c_uint32),
        ("payload_bytes", ctypes.c_uint32),
        ("switches", ctypes.c_uint32),
        ("hops", ctypes.c_uint32),
        ("own", ctypes.c_uint64 * OWN_WORDS),
    ]


class Hop(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("at_ns", "tx_bytes", "queue_bytes", "rate_mbps", "path")
    ]


class Policy(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        (
            "happen",
            ctypes.CFUNCTYPE(
                None,
                ctypes.POINTER(State),
                ctypes.POINTER(ctypes.c_uint32),
                ctypes.POINTER(Hop),
            ),
        ),
        ("parameters", ctypes.c_uint32),
        ("telemetry", ctypes.c_uint32),
    ]


def compiled(name, folder):
    """Return the policy in policy_<name>.c as a shared library's object."""
    source = HEADERS / f"policy_{name.replace('-', '_')}.c"
    made = folder / f"{name}.so"
    # what C does not define, as a division by 0 or a shift too far, ends the process
    options = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-fsanitize=undefined"]
    options += ["-fno-sanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    subprocess.run(["gcc", *options, "-o", made, source], check=True)
    return Policy.in_dll(ctypes.CDLL(str(made)), f"cl_policy_{name.replace('-', '_')}")


class Flow:
    """A flow under a policy, which is told of events."""

    def __init__(self, policy, numbers, line_bps=100_000_000_000, payload_bytes=1_000):
        assert policy.parameters == len(numbers)
        self._policy = policy
        self._numbers = (ctypes.c_uint32 * MAX_PARAMETERS)(*numbers)
        self.state = State(rate_bps=line_bps, line_bps=line_bps, payload_bytes=payload_bytes)

    def change(self, numbers, now_ns):
        """Give it other parameters at a time; return the rate that it answers."""
        self.tell(SETTLE, now_ns)
        self._numbers = (ctypes.c_uint32 * MAX_PARAMETERS)(*numbers)
        return self.tell(CHANGED, now_ns)

    def tell(self, event, now_ns, size_bytes=0, hops=(), **seen):
        """Tell it of an event; return the rate that it answers."""
        state = self.state
        state.now_ns, state.event, state.bytes, state.hops = now_ns, event, size_bytes, len(hops)
        for name, value in seen.items():
            setattr(state, name, value)
        records = (Hop * MAX_HOPS)(*hops)
        self._policy.happen(ctypes.byref(state), self._numbers, records)
        return state.rate_bps
