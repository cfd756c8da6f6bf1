"""The traffic matrix of edge switches, against the flows that made it."""

import itertools
import math

import numpy as np

from inventory.files import load_testbed
from orchestration.core.ports import TrialRun
from orchestration.core.signals import PAIRS, targets
from orchestration.core.trial import CLOSLOOP, TrialSpec, TunerSpec
from orchestration.run import backend_factory
from tests.trials import Watching
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

MS = 1_000_000
TESTBED = load_testbed("drlet-k4")


HEADERS = 52  # of IP and of TCP with time stamps


def on_the_way(payload: int) -> int:
    """Return the bytes of a flow's packets, as large as the MTU allows, and of its FIN."""
    return payload + HEADERS * (1 + math.ceil(payload / (TESTBED.mtu_bytes - HEADERS)))


def test_each_pair_has_the_bytes_of_its_hosts(tmp_path):
    trial = TrialSpec(
        campaign="pairs",
        testbed="drlet-k4",
        backend="emulated",
        tuner=TunerSpec("secn1"),
        traffic=(
            SingleFlowSpec("h1", "h9", 1_000_000, MS),
            SingleFlowSpec("h3", "h9", 500_000, MS),
            # below one edge switch, so of no pair; it ends last
            SingleFlowSpec("h5", "h6", 6_000_000, MS),
        ),
        seed=1,
        repeat=1,
        duration_ns=3 * MS,
        drain_ns=5 * MS,
        fabric=CLOSLOOP,
    )
    tuner = Watching(PAIRS)
    schedule = make_schedule(trial, TESTBED)
    backend_factory.backend("emulated").run(
        TrialRun(trial, TESTBED, schedule, tmp_path, tuner=tuner)
    )
    seen = [one[PAIRS] for one in tuner.seen]
    pairs = dict(zip(targets(TESTBED, "pair"), (seen[-1] - seen[0]).tolist(), strict=True))
    there = {"edge1>edge5": on_the_way(1_000_000), "edge2>edge5": on_the_way(500_000)}
    assert {name: pairs[name] for name in there} == there
    back = {"edge5>edge1", "edge5>edge2"}
    assert all(0 < pairs[name] < 100_000 for name in back), "acknowledgements"
    assert {name for name, value in pairs.items() if value} == {*there, *back}
    assert all(np.all(after >= before) for before, after in itertools.pairwise(seen))
