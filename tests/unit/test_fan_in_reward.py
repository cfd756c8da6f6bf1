"""What a reward says of a setting phase by phase, and what the arms of `fan-in` set."""

from __future__ import annotations

import csv
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.model.trial import TunerSpec
from orchestration.studies.bench import fan_in_arms
from orchestration.studies.bench.fan_in import SPACES, Headroom
from orchestration.studies.bench.fan_in_arms import Arm, Stretch, held, scenario, stretches
from orchestration.studies.bench.fan_in_reward import mean_rewards
from tuners.ecn.templates import acc_templates, graphcc_templates, pet_templates
from tuners.registry import create

MS = 1_000_000


def record(testbed, queue_bytes):
    """Samples of 100 us in which the first port sends half of its rate, and no other any."""
    at = np.arange(1, 101, dtype=np.int64) * MS // 10
    sent = np.zeros((len(at), len(testbed.queues)), dtype=np.int64)
    sent[:, 0] = at * testbed.queues[0].rate_bps * 0.5 / 8e9
    queue = np.zeros_like(sent)
    queue[:, 0] = queue_bytes(at)
    return SimpleNamespace(
        ports=SimpleNamespace(t_ns=at, values={"tx_bytes": sent, "qlen_bytes": queue})
    )


@pytest.mark.parametrize("swings", [False, True])
def test_a_queue_earns_by_the_mean_of_its_decision_in_each_phase(swings):
    testbed = load_testbed("rlcc-7")
    trial = SimpleNamespace(action_period_ns=MS, sample_period_ns=MS // 10)
    few, many = mean_rewards(
        create(TunerSpec("pet", {"beta_1": 0.3, "beta_2": 0.7})),
        testbed,
        # with swings, empty at each decision: what PET sees is the mean of ten samples
        record(
            testbed,
            lambda at: np.where(swings & (at % MS == 0), 0, np.where(at <= 5 * MS, 20_000, 60_000)),
        ),
        trial,
        [Stretch(0, 0, 5 * MS, crowded=False), Stretch(0, 5 * MS, 10 * MS, crowded=True)],
    )
    share = 0.9 if swings else 1.0
    assert few == pytest.approx(0.3 * 0.5 + 0.7 / (1 + share))  # in units of 20 KB
    assert many == pytest.approx(0.3 * 0.5 + 0.7 / (1 + 3 * share))


def test_phases_that_are_too_short_have_no_reward():
    testbed = load_testbed("rlcc-7")
    trial = SimpleNamespace(action_period_ns=MS, sample_period_ns=MS // 10)
    with pytest.raises(ValueError, match="longer than two decisions"):
        mean_rewards(
            create(TunerSpec("acc")),
            testbed,
            record(testbed, lambda at: 0 * at),
            trial,
            [Stretch(0, 0, MS, crowded=False), Stretch(0, MS, 9 * MS, crowded=True)],
        )


def test_the_oracle_changes_a_port_when_its_phase_begins_and_the_clock_all_ports(tmp_path):
    episodes = scenario()
    trial = dataclasses.replace(episodes[0], seed=5)
    few, many = (640, 1280, 0.05), (20, 40, 1.0)

    def written(arm):
        fan_in_arms._write(tmp_path / "actions.csv", arm, trial, episodes.testbed)
        with (tmp_path / "actions.csv").open(newline="") as file:
            return [
                (int(row["t_ns"]), row["port"], row["kmin_bytes"]) for row in csv.DictReader(file)
            ]

    ports = len(episodes.testbed.queues)
    found = list(stretches(trial, episodes.testbed))
    assert len({one.queue for one in found}) == 8
    rows = written(Arm(few, many))
    for one in found:
        wanted = "20000" if one.crowded else "640000"
        assert (one.begin_ns, episodes.testbed.queues[one.queue].name, wanted) in rows
    late = {row[:2] for row in written(Arm(few, many, late_ns=MS))}
    for one in found:
        port = episodes.testbed.queues[one.queue].name
        assert (one.begin_ns and one.begin_ns + MS, port) in late
    # each queue has one setting at a time, also those that receive nothing
    assert len({row[:2] for row in rows}) == len(rows) == len(found) + ports - 8
    assert len(written(held(few))) == ports
    slots = written(Arm(few, few, (few, many), 2 * MS))
    assert sorted({(row[0], row[2]) for row in slots}) == [(0, "640000"), (2 * MS, "20000")]
    assert len(slots) == 2 * ports


def test_a_share_is_of_the_way_from_the_best_static_setting_to_the_oracle():
    known = Headroom(static=6.0, oracle=3.0, late=3.6, clock=5.7, placebo=9.0, rewarded=3.1)
    assert (known.size, known.share(4.5), known.share(9.0)) == (0.5, 0.5, -1.0)


@pytest.mark.parametrize("tuner", SPACES)
def test_grids_hold_only_settings_that_their_tuners_have(tuner):
    templates = {"acc": acc_templates, "graphcc": graphcc_templates, "pet": pet_templates}
    space, table = SPACES[tuner], templates[tuner]()
    columns = (table.kmin_bytes // 1_000, table.kmax_bytes // 1_000, table.pmax)
    own = set(zip(*(column.tolist() for column in columns), strict=True))
    assert set(space.grid) | set(space.ladder) <= own
