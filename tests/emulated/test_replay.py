"""A replay of an emulated run has its parent's tables, to the bit."""

import json

import numpy as np
import pytest

from orchestration.core.engines import KERNEL, PROCESS
from orchestration.results.reader import finished_trials, read_trial
from orchestration.results.tables import TABLES
from tests.programs import closloop
from tests.testbeds import leaf_spine

CAMPAIGN = """campaign: old
testbed: rlcc-7
tuners: [amt]
traffic: [{kind: poisson, workload: FB_Hadoop, load: 0.6}]
repeats: 1
duration: 2ms
drain: 50ms
"""


def test_a_replay_repeats_flows_and_actions_on_linux(tmp_path):
    (tmp_path / "old.yml").write_text(CAMPAIGN, encoding="utf-8")
    closloop("run", "old.yml", "--json", cwd=tmp_path)
    # A relative path: the guest has to see the recording from where the user is.
    told = json.loads(closloop("replay", "runs/old", "--name", "again", "--json", cwd=tmp_path))
    assert (told["finished"], told["invalid"], told["failed"]) == (1, {}, {})
    again = json.loads(closloop("replay", "runs/old", "--name", "again", "--json", cwd=tmp_path))
    assert again["finished_earlier"] == 1
    (before,) = map(read_trial, finished_trials(tmp_path / "runs" / "old"))
    (after,) = map(read_trial, finished_trials(tmp_path / "runs" / "again"))
    assert after.spec.parent.startswith(f"old/{before.spec.id} sha256:")
    for table in ("schedule", "flows", "ports", "actions", "hosts"):
        ours, theirs = before.table(table), after.table(table)
        assert len(ours) == len(theirs) > 0
        for column in ours:
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=column)
    assert before.table("ports")["marked_packets"].sum() > 0


BED = leaf_spine("small", 2, 3, 3, "10Gbps", "5Gbps", buffer="400KB", uplinks_per_spine="1")
# Turns several knobs, each at times of its own, by what it sees and by chance.
TUNER = """
import numpy as np
from closloop import ECN, KNOBS, BaseTuner, Setup


class Restless(BaseTuner):
    knobs = ("ecn", KNOB)

    def reset(self, testbed, seed):
        self.queues, self.draw = len(testbed.queues), np.random.default_rng(seed)
        self.count = len(testbed.hosts if KNOB == "dcqcn" else testbed.switches)
        return Setup((ECN.change(np.arange(self.queues), 10_000, 40_000, 0.1),))

    def act(self, observation):
        made = []
        if self.draw.random() < 0.5:
            some = np.flatnonzero(observation.qlen_bytes > 0)
            kmin = self.draw.integers(1_000, 30_000, len(some))
            made.append(ECN.change(some, kmin, 2 * kmin, np.full(len(some), 0.3)))
        if self.draw.random() < 0.5:
            some = np.flatnonzero(self.draw.random(self.count) < 0.5)
            if KNOB == "dcqcn":
                ai = self.draw.integers(1, 400, len(some))
                made.append(KNOBS[KNOB].change(some, rpg_ai_rate=ai, rpg_gd=ai % 9))
            else:
                made.append(KNOBS[KNOB].change(some, self.draw.integers(2_000, 90_000, len(some))))
        return tuple(made)
"""
RESTLESS = """campaign: old
testbed: bed.yml
backend: {backend}
tuners: [{{name: "mine.py:Restless", label: restless}}]
load_balancing: {balancing}
{host}
traffic: [{{kind: poisson, workload: WebSearch, load: 0.6}}]
repeats: 1
duration: 3ms
drain: 300ms
decision_latency: 20us
sample_period: 50us
"""
# `paper` has a byte counter of 10 MB, which is no mlx5's, so no tuner could set it again.
NICS = """host:
  congestion_control: dcqcn
  roce: {dcqcn: paper, recovery: selective-repeat, decision_latency: 2us, decisions: blocking}
flow_sample_period: 200us"""
NICS_OF_PROCESS = """host: {congestion_control: dcqcn, roce: {dcqcn: paper}}
flow_sample_period: 200us"""


CASES = [
    ("flowlet_timeout", "{kind: flowlets, timeout: 30us, route_by: drill}", ""),
    ("flowlet_timeout", "{kind: flowlets, route_by: conga, dre_time: 80us}", NICS),
    ("dcqcn", "spray", NICS),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "knob", "balancing", "host"),
    [
        (PROCESS, "dcqcn", "ecmp", NICS_OF_PROCESS),
        *((KERNEL, *case) for case in CASES),
        *(pytest.param("ns-3", *case, marks=pytest.mark.ns3) for case in CASES),
    ],
)
def test_a_replay_turns_every_knob_again(tmp_path, engine, knob, balancing, host):
    backend = "simulated" if engine == "ns-3" else "emulated"
    (tmp_path / "bed.yml").write_text(BED, encoding="utf-8")
    (tmp_path / "mine.py").write_text(f'KNOB = "{knob}"\n{TUNER}', encoding="utf-8")
    text = RESTLESS.format(backend=backend, balancing=balancing, host=host)
    (tmp_path / "old.yml").write_text(text, encoding="utf-8")
    closloop("run", "old.yml", "--json", cwd=tmp_path)
    told = json.loads(closloop("replay", "runs/old", "--name", "again", "--json", cwd=tmp_path))
    assert (told["finished"], told["invalid"], told["failed"]) == (1, {}, {})
    (before,) = map(read_trial, finished_trials(tmp_path / "runs" / "old"))
    (after,) = map(read_trial, finished_trials(tmp_path / "runs" / "again"))
    assert after.spec.load_balancing == before.spec.load_balancing
    assert after.spec.host == before.spec.host
    assert after.spec.tuner.params.keys() == {"actions", f"actions_{knob}"}
    assert len(before.table(f"actions_{knob}")["t_ns"]) > 50
    compared = 0
    for table in TABLES:
        ours, theirs = before.table(table), after.table(table)
        for column in ours:
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=f"{table} {column}")
            compared += len(ours[column])
    assert compared > 10_000
