"""Small whole trials of the packet engine: what one of each kind does to queues, flows and NICs.

They run in the process, a second or less each. The same ones are repeated, sliced, checked and
sanitized.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from inventory.files import load_testbed
from orchestration import datapath
from orchestration.backends.emulated.process_rig import run_in_process
from orchestration.core.codec import flattened, record_tables
from orchestration.core.knobs import DCQCN, ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import Setup
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import CLOSLOOP, HostSpec, TunerSpec
from orchestration.datapath.flows import PARAMETER_ORDER
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tests.testbeds import leaf_spine, ring, single_switch
from tests.trials import trial_spec
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner

MS = 1_000_000
NIC = HostSpec("dcqcn", roce=RoceSpec())
# Hosts that hear no CNP send at line rate.
DEAF = HostSpec("dcqcn", roce=RoceSpec(dcqcn=(("min_time_between_cnps", MS),), timeout_ns=4 * MS))
CLASSES = "classes: [{name: rdma, weight: 50}, {name: other, weight: 50}]\n"


class Restless(BaseTuner):
    """Sets thresholds and DCQCN's parameters of some targets at each decision."""

    knobs = ("ecn", "dcqcn")

    def reset(self, testbed, seed):
        self.draw, self.hosts = np.random.default_rng(seed), len(testbed.hosts)
        self.queues = np.arange(len(testbed.queues))
        return Setup((ECN.change(self.queues, 5_000, 50_000, 0.1),))

    def act(self, observation):
        kmin = self.draw.integers(1_000, 100_000, len(self.queues))
        some = np.flatnonzero(self.draw.random(self.hosts) < 0.3)
        rates = self.draw.integers(1, 400, len(some))
        return (
            ECN.change(self.queues, kmin, 2 * kmin, 0.5),
            DCQCN.change(some, rpg_ai_rate=rates, min_time_between_cnps=rates),
        )


def own_policy():
    """Return hosts under DCQCN's source as a policy of the user's own."""
    values = DCQCN_SETS["mlx5"]
    numbers = tuple((f"{n:02}", values[name]) for n, name in enumerate(PARAMETER_ORDER))
    source = Path(datapath.__file__).with_name("policy_dcqcn.c")
    return HostSpec(
        "program", roce=RoceSpec(control="program", program=str(source), values=numbers)
    )


def incast(senders, size_bytes, to="h1"):
    return tuple(SingleFlowSpec(f"h{n + 2}", to, size_bytes, 0) for n in range(senders))


def deadlock():
    """Return flows each of which goes to the switch after the next of a ring."""
    pairs = (("l1", "l2"), ("s1", "s2"), ("l2", "l1"), ("s2", "s1"))
    return tuple(
        SingleFlowSpec(f"{a}h{n}", f"{b}h{n}", 200_000, 0)
        for a, b in pairs
        for n in (1, 2)
        for _ in range(8)
    )


_LOSSLESS = single_switch("one", 22, "25Gbps", switch="{buffer: 2MB, alpha: 1/8, pfc: [3]}")
_SHALLOW = single_switch("shallow", 17, "25Gbps", buffer="300KB")
_TWO_CLASSES = leaf_spine(
    "small", 3, 2, 4, "25Gbps", "25Gbps", switch="{buffer: 400KB, alpha: 1/8, pfc: [rdma]}"
)
_BOTH = tuple(
    SingleFlowSpec(f"h{n + 1}", f"h{m}", 200_000, n * 100, queue_class=("rdma", "other")[n % 2])
    for n in range(3, 12)
    for m in (1, 2)
)
_WEBSEARCH = (
    PoissonSpec("WebSearch", 0.6, 0, 2 * MS),
    IncastSpec(16, 512_000, 5 * MS, MS, 2 * MS),
)
_LASTING = (
    ConcurrentSpec(8, 0, 0, "h7", senders=4, spread_ns=50_000),
    ConcurrentSpec(6, 64_000, MS, "h7", within_ns=MS),
)
# testbed (a name, or a file's text), traffic, hosts, further fields of the trial
_PARTS = {
    "quickstart": ("graphcc", _WEBSEARCH, NIC, {}),
    "pfc": (_LOSSLESS, (*incast(20, 300_000), SingleFlowSpec("h2", "h22", MS, 0)), DEAF, {}),
    "drops": (_SHALLOW, incast(16, 1_000_000), NIC, {}),
    "classes": (_TWO_CLASSES + CLASSES, _BOTH, NIC, {}),
    "watchdog-alert": (ring("alert"), deadlock(), DEAF, {}),
    "watchdog-drop": (ring("drop"), deadlock(), DEAF, {}),
    "watchdog-forward": (ring("forward"), deadlock(), DEAF, {}),
    "own-policy": (_SHALLOW, incast(8, 500_000), own_policy(), {}),
    "lasting": ("rlcc-7", _LASTING, NIC, {"flow_sample_period_ns": 500_000}),
    "changes": ("graphcc", _WEBSEARCH, NIC, {"decision_latency_ns": 20_000}),
}
NAMES = tuple(_PARTS)


def process_run(name, folder, **more):
    """Return one of the trials as it is given to a backend; `more` are further fields of it."""
    testbed, traffic, host, fields = _PARTS[name]
    if "\n" in testbed:
        (folder / "testbed.yml").write_text(testbed)
        testbed = str(folder / "testbed.yml")
    found = load_testbed(testbed)
    usual = {"seed": 7, "duration_ns": 3 * MS, "drain_ns": 50 * MS, "action_period_ns": 100_000}
    trial = trial_spec(
        backend="emulated", testbed=testbed, tuner=TunerSpec("secn1"), fabric=CLOSLOOP,
        traffic=traffic, host=host, **{**usual, **fields, **more},
    )  # fmt: skip
    tuner = Restless() if name == "changes" else None
    return TrialRun(trial, found, make_schedule(trial, found), folder, tuner=tuner)


def record_of(name, folder, **more):
    """Run one of the trials; return its record without what wall time has to do with."""
    record = run_in_process(process_run(name, folder, **more))
    facts = {key: value for key, value in record.facts.items() if key != "stages_s"}
    return replace(record, facts=facts)


def tables_of(record):
    return flattened(record_tables(record))
