"""What every backend says of the flows at a queue, for flows that are known."""

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE
from orchestration.core.signals import FLOW_TABLE
from orchestration.core.trial import TrialSpec, TunerSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner
from tuners.ecn.static import Secn1

MS = 1_000_000
TESTBED = load_testbed("graphcc")
TRAFFIC = (
    IncastSpec(12, 300_000, 100 * MS, 0, MS, receiver="h1"),
    SingleFlowSpec("h2", "h20", 3_000_000, 0),
    SingleFlowSpec("h3", "h21", 1_000_000, 0),
    SingleFlowSpec("h4", "h22", 1_000_001, 0),
    SingleFlowSpec("h5", "h23", 20, 0),
)


class Watcher(BaseTuner):
    """Keeps what it is shown."""

    def __init__(self, observes_flows):
        if observes_flows:
            self.observes = (*BaseTuner.observes, *FLOW_TABLE)
        self.seen = []

    def reset(self, testbed, seed):
        return Secn1().reset(testbed, seed)

    def act(self, observation):
        self.seen.append(observation)
        return ()


@pytest.fixture
def watch(tcp_engine, tmp_path):
    def run(traffic, duration_ns=2 * MS, *, observes_flows=True):
        backend = tcp_engine.make()
        spec = TunerSpec("secn1")
        trial = TrialSpec("c", "graphcc", backend.name, spec, traffic, 1, 1, duration_ns, 20 * MS)
        schedule, watcher = make_schedule(trial, TESTBED), Watcher(observes_flows)
        record = backend.run(TrialRun(trial, TESTBED, schedule, tmp_path, tuner=watcher))
        assert (record.flows.status == DONE).all()
        return watcher.seen, record

    return run


def queue_to(host):
    return next(n for n, q in enumerate(TESTBED.queues) if TESTBED.peer_device(q).name == host)


def column(seen, name, host):
    return [int(getattr(observation, name)[queue_to(host)]) for observation in seen]


def test_known_flows_are_counted_at_their_queues(watch):
    seen, _ = watch(TRAFFIC)
    assert column(seen, "incast_degree", "h1")[:8] == [12] * 8
    assert column(seen, "mice_flows", "h1")[:8] == [12] * 8
    assert set(column(seen, "elephant_flows", "h1")) == {0}
    # 3 MB at 25 Gbit/s: the first megabyte takes some 340 us
    assert column(seen, "elephant_flows", "h20")[:3] == [0, 0, 0]
    assert column(seen, "elephant_flows", "h20")[4:9] == [1] * 5
    assert column(seen, "mice_flows", "h20")[4:9] == [0] * 5
    # 1,000,000 B is a mouse to the end, one byte more is an elephant
    assert set(column(seen, "elephant_flows", "h21")) == {0}
    assert max(column(seen, "elephant_flows", "h22")) == 1
    # a single packet is counted for three slots
    assert column(seen, "mice_flows", "h23")[:5] == [1, 1, 1, 0, 0]


def test_uplinks_see_part_of_an_incast(watch):
    """h1's leaf has 6 hosts, so that at least 7 of 12 senders come over the spines' two ports."""
    seen, _ = watch((IncastSpec(12, 300_000, 100 * MS, 0, MS, receiver="h1"),))
    leaf = TESTBED.queues[queue_to("h1")].device
    down = [n for n, q in enumerate(TESTBED.queues) if TESTBED.peer_device(q).name == leaf
            and TESTBED.device[q.device].kind == "switch"]  # fmt: skip
    assert 7 <= sum(seen[1].incast_degree[down]) <= 12


def test_what_is_seen_has_the_shape_of_the_queues(watch):
    seen, _ = watch((SingleFlowSpec("h1", "h2", 1_000_000, 0),))
    assert seen
    for observation in seen:
        for name in ("incast_degree", "mice_flows", "elephant_flows"):
            values = getattr(observation, name)
            assert values.shape == (len(TESTBED.queues),)
            assert values.dtype == np.int64


def test_no_table_is_kept_unless_it_is_asked_for(watch):
    seen, record = watch((SingleFlowSpec("h1", "h2", 1_000_000, 0),), observes_flows=False)
    assert seen[0].get("incast_degree") is None
    assert seen[0].get("mice_flows") is None
    assert seen[0].get("elephant_flows") is None
    assert "flow_table" not in record.facts
