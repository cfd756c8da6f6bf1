"""What makes trials comparable, and that reports, replays, exports and learning agree on it."""

from __future__ import annotations

import dataclasses

import pytest

from orchestration.core.condition import (
    campaign_tuner_name,
    condition_key,
    condition_settings,
    factor_labels,
    factors_of,
)
from orchestration.core.trial import ACTIONS, HostSpec, TunerSpec
from orchestration.environment.episode import EpisodeSource
from orchestration.exchange.source import read_source
from tests.trials import trial_spec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.replay import ReplaySpec

SPEC = trial_spec(
    campaign="first",
    testbed="graphcc",
    traffic=(IncastSpec(4, 1_000, 1_000, 0, 9_000),),
    duration_ns=9_000,
    drain_ns=1_000,
    cell={"tuner": "secn1", "tuner_gain": 0.5, "load": 0.6},
    files={"bed.yml": "1"},
)
CAMPAIGN = """\
campaign: gains
testbed: graphcc
backend: fluid
tuners:
  - {name: static, label: low, kmin_bytes: 5KB, kmax_bytes: 9KB, pmax: $tuner_gain}
  - {name: static, label: high, kmin_bytes: 50KB, kmax_bytes: 90KB, pmax: $tuner_gain}
traffic: [{kind: incast, fan_in: $tuner_fan_in, size: 20KB, period: 1ms}]
factors: {tuner_gain: [0.1, 0.5], tuner_fan_in: [2, 4]}
duration: 2ms
repeats: 1
"""


def other(**changes):
    return dataclasses.replace(SPEC, **changes)


def test_a_factor_whose_name_begins_with_tuner_is_a_factor():
    assert factors_of(SPEC.cell) == {"tuner_gain": 0.5, "load": 0.6}
    assert factor_labels(SPEC.cell) == ["tuner_gain 0.5", "load 0.6"]
    assert factor_labels(SPEC.cell, "-") == ["tuner_gain-0.5", "load-0.6"]
    assert condition_key(SPEC) != condition_key(other(cell={**SPEC.cell, "tuner_gain": 0.7}))
    assert campaign_tuner_name(SPEC) == "secn1"
    assert campaign_tuner_name(other(cell={"tuner": "mine"})) == "mine"
    assert campaign_tuner_name(other(cell={})) == "secn1"


@pytest.mark.parametrize(
    "changes",
    [
        {"tuner": TunerSpec("acc", {"checkpoint": "x"}), "cell": {**SPEC.cell, "tuner": "acc"}},
        {"seed": 2, "repeat": 2},
        {"campaign": "again", "parent": "runs/first/x sha256:1"},
        {"action_period_ns": 500_000},
        {"files": {"bed.yml": "1", f"{ACTIONS}x": "2", "net.safetensors": "3"}},
    ],
)
def test_what_leaves_the_condition_as_it_is(changes):
    assert condition_key(other(**changes)) == condition_key(SPEC)


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "simulated"},
        {"testbed": "rlcc-7"},
        {"files": {"bed.yml": "2"}},
        {"traffic": (ReplaySpec("flows.csv", 0, 9_000),)},
        {"duration_ns": 8_000},
        {"sample_period_ns": 200_000},
        {"decision_latency_ns": 5},
        {"host": HostSpec("cubic")},
    ],
)
def test_what_makes_another_condition(changes):
    assert condition_settings(other(**changes)) != condition_settings(SPEC)


def test_imports_of_one_fabric_are_one_condition_whatever_their_flows_and_their_length():
    first = other(backend="imported", files={"testbed": "1", "schedule": "1"})
    second = dataclasses.replace(
        first, duration_ns=5, drain_ns=6, files={"testbed": "1", "schedule": "2"}
    )
    assert condition_key(first) == condition_key(second)
    assert condition_key(first) != condition_key(dataclasses.replace(first, files={"testbed": "2"}))


def test_learning_takes_every_condition_and_an_export_every_schedule_once(tmp_path):
    path = tmp_path / "gains.yml"
    path.write_text(CAMPAIGN)
    source = EpisodeSource(path, None, seed=1)
    cells = [factors_of(source.next().cell) for _ in range(4)]
    assert cells == [
        {"tuner_gain": gain, "tuner_fan_in": fan_in} for gain in (0.1, 0.5) for fan_in in (2, 4)
    ]
    # the gain is the tuner's own: it makes no other flows
    assert sorted(len(item.schedule) for item in read_source(path)) == [4, 8]
