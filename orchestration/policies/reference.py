"""RL-CC as a policy, in NumPy: what policy_rlcc.h and rlcc.h do with flows, bit for bit.

It was written independently of them, for tests: the C, the BPF program and this code must leave
flows in the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestration.policies.trees import ONE, Settings

START, ACK, NACK, TIMEOUT, RTT = 0, 2, 3, 5, 6  # enum cl_event_kind of policy.h
MIN_DELTA = -32 * ONE
MAX_INFLATION = 256 * ONE - 1
_LINE = 1 << 30  # shares of the line are counted in 2^-30
_MIN_SHARE = 64 << 10
_MIN_BPS = 1_000_000
_MAX_RTT_NS = 2**32 - 1
# Indices of 32-bit words in struct rlcc. Words 0 and 1 are one number, the last decision's time.
SHARE, MIN, MIN_RTT, DECISIONS, ACTION, WINDOW = 2, 3, 4, 5, 6, 7

# A model: from windows (N, features) and memories (N, words), which it may change, to actions (N,).
Infer = Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[Any]]


def happen(given: NDArray[Any], settings: Settings, infer: Infer) -> NDArray[Any]:
    """Return flows (`CONTEXT` of collectors/bpf/policy.py) after one event each.

    `infer` returns actions in 2^-16, which need not be within the bounds of `settings`. A model's
    memory lies behind its window.
    """
    flows = given.copy()
    state = flows["own"].view(np.int32).reshape(len(flows), -1)
    starts = flows["event"] == START
    _start(flows, state, starts, settings.history)
    observed, delta, inflation = _observe(flows, state)
    lost = np.isin(flows["event"], (NACK, TIMEOUT))
    deciding = np.flatnonzero(observed | lost)
    deltas = np.where(lost, MIN_DELTA, delta)[deciding]
    part = state[deciding]
    if settings.present:
        end = WINDOW + 2 * settings.history
        part[:, end] = np.where(lost, MAX_INFLATION, inflation)[deciding].clip(max=MAX_INFLATION)
        part[:, end + 1] = part[:, SHARE] >> 14
    _decide(part, deltas, settings, infer)
    state[deciding] = part
    flows["own"][deciding, 0] = flows["now_ns"][deciding]
    has_new_rate = starts.copy()
    has_new_rate[deciding] = True
    share, line = state[has_new_rate, SHARE].astype(np.uint64), flows["line_bps"][has_new_rate]
    flows["rate_bps"][has_new_rate] = (line >> 30) * share + ((line & (_LINE - 1)) * share >> 30)
    return flows


def _start(
    flows: NDArray[Any], state: NDArray[np.int32], starts: NDArray[np.bool_], history: int
) -> None:
    """Initialise the state of the flows that start."""
    line = flows["line_bps"][starts].astype(object)
    minimum = [-(-(_MIN_BPS << 30) // rate) if rate else 0 for rate in line]
    flows["own"][starts, 0] = flows["now_ns"][starts]
    rate = flows["parameters"][starts, 3].astype(np.int64)
    state[starts, SHARE] = np.where((rate > 0) & (rate < 1000), _LINE * rate // 1000, _LINE)
    state[starts, MIN] = np.clip(np.array(minimum, dtype=np.int64), _MIN_SHARE, _LINE)
    state[starts, ACTION] = ONE
    state[starts, WINDOW : WINDOW + 2 * history : 2] = 0
    state[starts, WINDOW + 1 : WINDOW + 2 * history : 2] = ONE


def _observe(
    flows: NDArray[Any], state: NDArray[np.int32]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Keep each flow's minimum RTT; return which flows may decide, their deltas, their inflations.

    A flow may decide on a packet that left after its last decision. Deltas are of equation 4, an
    inflation is RTT over base RTT, both in 2^-16.
    """
    timed = np.isin(flows["event"], (ACK, RTT)) & (flows["rtt_ns"] > 0)
    rtt_ns = np.minimum(flows["rtt_ns"], _MAX_RTT_NS).astype(np.int64)
    min_rtt_ns = state[:, MIN_RTT].view(np.uint32).astype(np.int64)
    is_lower = timed & ((min_rtt_ns == 0) | (rtt_ns < min_rtt_ns))
    min_rtt_ns = np.where(is_lower, rtt_ns, min_rtt_ns)
    state[:, MIN_RTT] = min_rtt_ns.astype(np.uint32).view(np.int32)
    sent_ns = flows["now_ns"].astype(np.int64) - rtt_ns
    may_decide = timed & (sent_ns >= 0) & (sent_ns >= flows["own"][:, 0].astype(np.int64))
    target, beta = (flows["parameters"][:, n].astype(np.int64) * ONE // 1000 for n in (0, 1))
    base_ns = flows["parameters"][:, 2].astype(np.int64)
    base_ns = np.maximum(np.where(base_ns == 0, min_rtt_ns, base_ns), 1)
    inflation = rtt_ns * ONE // base_ns
    above = np.clip(inflation - beta, 0, 1 << 40)
    root = np.floor(np.sqrt(state[:, SHARE].astype(np.float64) * 4)).astype(np.int64)
    return may_decide, np.maximum(target - above * root // ONE, MIN_DELTA), inflation


def _decide(
    state: NDArray[np.int32], delta: NDArray[np.int64], settings: Settings, infer: Infer
) -> None:
    """Add the deltas to the flows' windows, and change their rates by the model's actions."""
    end = WINDOW + 2 * settings.history
    state[:, WINDOW + 2 : end] = state[:, WINDOW : end - 2].copy()
    state[:, WINDOW] = delta
    state[:, WINDOW + 1] = state[:, ACTION]
    memory = WINDOW + len(settings.features)
    actions = infer(state[:, WINDOW:memory].astype(np.int64), state[:, memory:])
    action = np.clip(actions.astype(np.int64), settings.min_action, settings.max_action)
    share = state[:, SHARE].astype(np.int64) * action // ONE
    state[:, SHARE] = np.minimum(np.maximum(share, state[:, MIN]), _LINE)
    state[:, ACTION] = action
    state[:, DECISIONS] += 1
