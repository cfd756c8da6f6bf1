"""RL-CC as a policy, in NumPy: what policy_rlcc.h and rlcc.h do with flows, bit for bit.

Written apart from them, for tests: C, BPF and this must leave flows the same.
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
# Words of 32 bits of struct rlcc, of which the first two are one number.
SHARE, MIN, MIN_RTT, DECISIONS, ACTION, WINDOW = 2, 3, 4, 5, 6, 7

# From windows (N, features) and memories (N, words), which it may change, to actions (N,).
Infer = Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[Any]]


def happen(given: NDArray[Any], settings: Settings, infer: Infer) -> NDArray[Any]:
    """Return flows (`CONTEXT` of collectors/bpf/policy.py) after the events that they hear of.

    `infer` answers actions in 2^-16, which need not be within the bounds of `settings`; what a
    model remembers lies behind its window.
    """
    made = given.copy()
    own = made["own"].view(np.int32).reshape(len(made), -1)
    starts = made["event"] == START
    _start(made, own, starts, settings.history)
    observed, delta, inflation = _observe(made, own)
    lost = np.isin(made["event"], (NACK, TIMEOUT))
    decides = np.flatnonzero(observed | lost)
    seen = np.where(lost, MIN_DELTA, delta)[decides]
    part = own[decides]
    if settings.present:
        end = WINDOW + 2 * settings.history
        part[:, end] = np.where(lost, MAX_INFLATION, inflation)[decides].clip(max=MAX_INFLATION)
        part[:, end + 1] = part[:, SHARE] >> 14
    _decide(part, seen, settings, infer)
    own[decides] = part
    made["own"][decides, 0] = made["now_ns"][decides]
    answers = starts.copy()
    answers[decides] = True
    share, line = own[answers, SHARE].astype(np.uint64), made["line_bps"][answers]
    made["rate_bps"][answers] = (line >> 30) * share + ((line & (_LINE - 1)) * share >> 30)
    return made


def _start(made: NDArray[Any], own: NDArray[np.int32], at: NDArray[np.bool_], history: int) -> None:
    line = made["line_bps"][at].astype(object)
    minimum = [-(-(_MIN_BPS << 30) // rate) if rate else 0 for rate in line]
    made["own"][at, 0] = made["now_ns"][at]
    rate = made["parameters"][at, 3].astype(np.int64)
    own[at, SHARE] = np.where((rate > 0) & (rate < 1000), _LINE * rate // 1000, _LINE)
    own[at, MIN] = np.clip(np.array(minimum, dtype=np.int64), _MIN_SHARE, _LINE)
    own[at, ACTION] = ONE
    own[at, WINDOW : WINDOW + 2 * history : 2] = 0
    own[at, WINDOW + 1 : WINDOW + 2 * history : 2] = ONE


def _observe(
    made: NDArray[Any], own: NDArray[np.int32]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Keep the least round trip; return who may decide, on which deltas (equation 4), and RTT over
    base RTT.
    """
    timed = np.isin(made["event"], (ACK, RTT)) & (made["rtt_ns"] > 0)
    rtt = np.minimum(made["rtt_ns"], _MAX_RTT_NS).astype(np.int64)
    minimum = own[:, MIN_RTT].view(np.uint32).astype(np.int64)
    minimum = np.where(timed & ((minimum == 0) | (rtt < minimum)), rtt, minimum)
    own[:, MIN_RTT] = minimum.astype(np.uint32).view(np.int32)
    now = made["now_ns"].astype(np.int64)
    left = now - rtt
    may = timed & (left >= 0) & (left >= made["own"][:, 0].astype(np.int64))
    target, beta = (made["parameters"][:, n].astype(np.int64) * ONE // 1000 for n in (0, 1))
    base = made["parameters"][:, 2].astype(np.int64)
    base = np.maximum(np.where(base == 0, minimum, base), 1)
    inflation = rtt * ONE // base
    above = np.clip(inflation - beta, 0, 1 << 40)
    root = np.floor(np.sqrt(own[:, SHARE].astype(np.float64) * 4)).astype(np.int64)
    return may, np.maximum(target - above * root // ONE, MIN_DELTA), inflation


def _decide(
    own: NDArray[np.int32], delta: NDArray[np.int64], settings: Settings, infer: Infer
) -> None:
    end = WINDOW + 2 * settings.history
    own[:, WINDOW + 2 : end] = own[:, WINDOW : end - 2].copy()
    own[:, WINDOW] = delta
    own[:, WINDOW + 1] = own[:, ACTION]
    words = WINDOW + len(settings.features)
    answer = infer(own[:, WINDOW:words].astype(np.int64), own[:, words:])
    action = np.clip(answer.astype(np.int64), settings.min_action, settings.max_action)
    share = own[:, SHARE].astype(np.int64) * action // ONE
    own[:, SHARE] = np.minimum(np.maximum(share, own[:, MIN]), _LINE)
    own[:, ACTION] = action
    own[:, DECISIONS] += 1
