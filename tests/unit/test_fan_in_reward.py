"""What a reward says of static settings, part by part."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.model.trial import TunerSpec
from orchestration.studies.bench.fan_in import WEIGHTS, Headroom
from orchestration.studies.bench.fan_in_reward import Part, held_by_reward, mean_reward
from tuners.registry import create

MS = 1_000_000


def record(testbed, share, queue_bytes):
    """Ten samples of 100 us in which the first port sends `share` of its rate, and no other any."""
    at = np.arange(1, 41, dtype=np.int64) * MS // 10
    count = len(testbed.queues)
    sent = np.zeros((len(at), count), dtype=np.int64)
    sent[:, 0] = at * testbed.queues[0].rate_bps * share / 8e9
    queue = np.zeros_like(sent)
    queue[:, 0] = queue_bytes(at)
    return SimpleNamespace(
        ports=SimpleNamespace(t_ns=at, values={"tx_bytes": sent, "qlen_bytes": queue})
    )


@pytest.mark.parametrize("swings", [False, True])
def test_a_busy_queue_earns_by_the_mean_of_its_decision(swings):
    testbed = load_testbed("rlcc-7")
    pet = create(TunerSpec("pet", dict(WEIGHTS["pet"])))
    found = mean_reward(
        pet,
        testbed,
        # with swings, empty at each decision: what PET sees is the mean of ten samples
        record(testbed, 0.5, lambda at: np.where(swings & (at % MS == 0), 0, 20_000)),
        MS // 10,
        MS,
        (MS, 4 * MS),
    )
    mean = 0.9 if swings else 1.0  # in units of 20 KB
    assert found == pytest.approx(0.3 * 0.5 + 0.7 / (1 + mean))


def test_a_part_in_which_nothing_is_sent_has_no_reward():
    testbed = load_testbed("rlcc-7")
    with pytest.raises(ValueError, match="no queue is busy between 1000000 and 4000000 ns"):
        mean_reward(
            create(TunerSpec("acc")),
            testbed,
            record(testbed, 0.05, lambda at: 0 * at),
            MS // 10,
            MS,
            (MS, 4 * MS),
        )


def test_what_a_misleading_reward_prefers_takes_nothing():
    good, bad = np.array([2.0, 4.0]), np.array([8.0, 10.0])
    # the second part's reward prefers what is slow there
    settings = [[Part(good, 0.8), Part(bad, 0.7)], [Part(bad, 0.5), Part(good, 0.6)]]
    held = held_by_reward(settings)
    assert [part.slowdown.mean() for part in held] == [3.0, 9.0]
    known = Headroom(static=6.0, placebo=9.0, oracle=3.0, rewarded=6.0)
    assert known.share(known.rewarded) == 0.0
