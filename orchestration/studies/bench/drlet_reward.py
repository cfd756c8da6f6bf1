"""What DRLet's reward tells: how it ranks timeouts, and how much one switch can change it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np

from orchestration.model.load_balancing import LoadBalancingSpec
from orchestration.model.records import DONE, Floats, Observation
from orchestration.model.trial import TunerSpec
from orchestration.studies.bench.outcome import (
    MILLISECOND,
    Figure,
    Outcome,
    Run,
    run_trial,
    websearch,
)
from tuners.flowlet.reward import reward
from tuners.flowlet.uplinks import Uplinks

_TIMEOUTS_US = (100, 200, 400, 1_000, 2_000, 4_000, 8_000)
_SEEDS = (11, 12, 13, 14, 15)
_LASTS_NS = 40 * MILLISECOND
_PERIOD_NS = MILLISECOND // 2
_ALPHA = _BETA = 0.5
_SURE = 1.96  # of a normal variable, 95 %


def drlet_reward() -> Outcome:
    """DRLet's reward and FCT of static timeouts, and how many decisions tell them apart."""
    rewards: dict[int, list[Floats]] = {us: [] for us in _TIMEOUTS_US}
    fct_ms: dict[int, list[float]] = {us: [] for us in _TIMEOUTS_US}
    switches = 0
    for seed in _SEEDS:
        for us in _TIMEOUTS_US:
            run = run_trial(
                "drlet-k4",
                websearch(_LASTS_NS),
                TunerSpec("timeout", params={"timeout_ns": us * 1_000}),
                duration_ns=_LASTS_NS,
                sample_period_ns=_PERIOD_NS,
                seed=seed,
                load_balancing=LoadBalancingSpec("flowlets"),
            )
            switches = len(Uplinks(run.testbed).switches)
            rewards[us].append(np.array(list(_rewards(run))))
            flows = run.record.flows
            lasted = (flows.end_ns - run.schedule.start_ns)[flows.status == DONE]
            fct_ms[us].append(float(lasted.mean()) / MILLISECOND)
    return _outcome(rewards, fct_ms, switches)


def _outcome(
    rewards: dict[int, list[Floats]], fct_ms: dict[int, list[float]], switches: int
) -> Outcome:
    figures = []
    means = {us: [float(one.mean()) for one in found] for us, found in rewards.items()}
    for us in _TIMEOUTS_US:
        earned, spread = statistics.mean(means[us]), _half_width(means[us])
        fct = statistics.mean(fct_ms[us])
        what = f"{us:,} us: mean reward of a decision; mean FCT"
        figures.append(Figure(what, f"{earned:.3f} ±{spread:.3f}; {fct:.3f} ms"))
    average = [statistics.mean(means[us]) for us in _TIMEOUTS_US]
    most = max(average) - min(average)
    # within a trial: what differs between trials is their traffic's
    deviation = float(np.sqrt(np.mean([one.var() for found in rewards.values() for one in found])))
    share = most / switches
    ranks = [
        float(np.corrcoef([means[us][n] for us in _TIMEOUTS_US], column)[0, 1])
        for n, column in enumerate(zip(*(fct_ms[us] for us in _TIMEOUTS_US), strict=True))
    ]
    figures += [
        Figure("reward: the best timeout above the worst", f"{most:.3f}"),
        Figure("reward: deviation of one decision", f"{deviation:.2f}"),
        Figure(
            "reward and FCT over timeouts: correlation, mean of seeds", f"{np.mean(ranks):+.2f}"
        ),
        Figure(f"what one of {switches} switches can change of it, at most", f"{share:.4f}"),
        Figure(
            "decisions that would show this to 95 %", f"{2 * (_SURE * deviation / share) ** 2:,.0f}"
        ),
    ]
    return Outcome(
        "DRLet's reward: drlet-k4, WebSearch at 60 %, 40 ms, a decision each 500 us",
        tuple(figures),
        notes=(
            f"{len(_SEEDS)} seeds, weights of a half in equation 5, while flows arrive; traffic "
            "is what edge switches send upwards. A reward that falls with FCT has a correlation "
            "below 0. The last figure takes decisions for independent.",
        ),
        data={"rewards": means, "fct_ms": fct_ms},
    )


def _half_width(values: list[float]) -> float:
    return float(2.776 * statistics.stdev(values) / len(values) ** 0.5)  # Student's t, 4 degrees


def _rewards(run: Run) -> Iterator[float]:
    """Yield the reward of each period in which flows arrive, but the first two."""
    links, ports = Uplinks(run.testbed), run.record.ports
    testbed = run.testbed
    edges = {testbed.peer_device(testbed.ports_of[host][0]).name for host in testbed.hosts}
    upward = links.up & np.array([port.device in edges for port in testbed.switch_ports])
    before = 0.0
    for t_ns, sent in zip(ports.t_ns.tolist(), ports.tx_bytes, strict=True):
        if not 0 < t_ns <= _LASTS_NS:
            continue
        age_ns = np.zeros(len(sent), dtype=np.int64)
        used = links.utilisation(Observation(t_ns, age_ns, {"tx_bytes": sent}))
        now = float(links.sent_bytes[upward].sum())
        if t_ns > 2 * _PERIOD_NS:
            yield float(reward(used[links.between].var(), now, before, _ALPHA, _BETA))
        before = now
