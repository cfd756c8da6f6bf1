"""What the arms of `fan-in` set, and what shares of its headroom are."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest

from orchestration.bench.fan_in import BEST_SETTINGS, Arm, Headroom, arm_settings, scenario_episodes
from orchestration.core.pattern import Streams
from traffic.patterns.alternating import phases
from tuners.ecn.pet import HEADS, thresholds
from tuners.ecn.templates import acc_templates, graphcc_templates

MS = 1_000_000


def test_the_oracle_changes_a_port_when_its_phase_begins():
    episodes = scenario_episodes()
    trial, testbed = dataclasses.replace(episodes[0], seed=5), episodes.testbed
    few, many = (640, 1280, 0.05), (20, 40, 1.0)
    queue = {testbed.peer_device(one).name: place for place, one in enumerate(testbed.queues)}
    begins = {
        (phase.start_ns, queue[spec.receiver]): many if phase.crowded else few
        for place, spec in enumerate(trial.traffic)
        for phase in phases(spec, Streams.spawn(trial.seed, place).times)
    }
    assert {one[1] for one in begins} == {queue[f"h{n}"] for n in range(1, 9)}
    untouched = {(0, place): few for place in range(len(testbed.queues))}

    def written(arm):
        rows = list(arm_settings(arm, trial, testbed))
        assert rows == sorted(rows)
        found = {row[:2]: row[2] for row in rows}
        assert len(found) == len(rows)  # a queue has one setting at a time
        return found

    assert written(Arm(few, many)) == untouched | begins
    late = {(t_ns and t_ns + MS, place): one for (t_ns, place), one in begins.items()}
    assert written(Arm(few, many, late_ns=MS)) == untouched | late
    assert written(Arm(few, few)) == untouched


def test_a_share_is_of_the_way_from_the_best_static_setting_to_the_oracle():
    known = Headroom(static=6.0, oracle=3.0, late=3.6, placebo=9.0)
    assert (known.size, known.share(4.5), known.share(9.0)) == (0.5, 0.5, -1.0)


@pytest.mark.parametrize("tuner", BEST_SETTINGS)
def test_references_are_settings_that_their_tuners_have(tuner):
    if tuner == "pet":
        heads = np.array(list(product(*map(range, HEADS))))
        change = thresholds(np.arange(len(heads)), heads)
    else:
        change = {"acc": acc_templates, "graphcc": graphcc_templates}[tuner]()
    columns = (change.kmin_bytes // 1_000, change.kmax_bytes // 1_000, change.pmax)
    own = set(zip(*(column.tolist() for column in columns), strict=True))
    assert {BEST_SETTINGS[tuner].static, BEST_SETTINGS[tuner].few, BEST_SETTINGS[tuner].many} <= own
