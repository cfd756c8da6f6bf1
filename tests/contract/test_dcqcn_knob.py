"""DCQCN's parameters as a knob: whom a change concerns, from when on, and what it leaves alone."""

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.core.codec import flattened, record_tables
from orchestration.core.knobs import DCQCN, ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, Setup
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, HostSpec, TrialSpec, TunerSpec
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tests.testbeds import single_switch
from traffic.patterns.poisson import PoissonSpec
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule
from tuners.base import BaseTuner

MS = 1_000_000
# its `rpg_byte_reset` is out of an mlx5 NIC's bounds, and a change of others leaves it so
HOST = HostSpec("dcqcn", roce=RoceSpec(dcqcn=tuple(DCQCN_SETS["paper"].items())))
STAR = single_switch("star", 5, "25Gbps", buffer="64MB")


class Plan(BaseTuner):
    """Makes the changes that `plan` has for the time of a reading, and keeps the readings."""

    knobs = ("ecn", "dcqcn")
    observes = ("qlen_bytes", "host.rate_bps", "host.cnps", "tx_bytes")

    def __init__(self, plan):
        self.plan, self.seen = plan, {}

    def reset(self, testbed, seed):
        ecn = ECN.change(np.arange(len(testbed.queues)), 5_000, 50_000, 0.1)
        return Setup((ecn, *self.plan(0)))

    def act(self, observation):
        self.seen[observation.t_ns] = observation
        return self.plan(observation.t_ns)


@pytest.fixture
def run(roce_engine, tmp_path):
    def run_trial(traffic, plan, testbed="star"):
        if testbed == "star":
            testbed = str(tmp_path / "star.yml")
            (tmp_path / "star.yml").write_text(STAR)
        trial = TrialSpec(
            "c", testbed, roce_engine.backend, TunerSpec("secn1"), traffic, 3, 1, 2 * MS, 50 * MS,
            host=HOST, fabric=FabricSpec("closloop"),
        )  # fmt: skip
        fabric, tuner = load_testbed(trial.testbed), Plan(plan)
        schedule = make_schedule(trial, fabric)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        run = TrialRun(trial, fabric, schedule, folder, tuner=tuner)
        record = roce_engine.make().run(run)
        assert (record.flows.status == DONE).all()
        return record, tuner.seen

    return run_trial


def test_a_change_holds_at_once_for_the_flows_of_its_hosts_old_and_new(run):
    flows = (
        SingleFlowSpec("h1", "h2", 6_000_000, 0),
        SingleFlowSpec("h3", "h4", 6_000_000, 0),
        SingleFlowSpec("h1", "h5", 100_000, 700_000),
    )
    slow = DCQCN.change([0], rpg_max_rate=5_000)
    plan = {500_000: (slow,), 1_000_000: (DCQCN.change([0, 2], rpg_max_rate=0),)}
    record, seen = run(flows, lambda t_ns: plan.get(t_ns, ()))
    rates = {t_ns: one["host.rate_bps"].tolist() for t_ns, one in seen.items()}
    assert rates[500_000] == [25_000_000_000, 0, 25_000_000_000, 0, 0]
    assert rates[600_000] == [5_000_000_000, 0, 25_000_000_000, 0, 0]
    assert rates[800_000] == [10_000_000_000, 0, 25_000_000_000, 0, 0]
    assert rates[1_200_000][0] >= 25_000_000_000
    sent = np.array([seen[t_ns]["tx_bytes"] for t_ns in (500_000, 600_000, 700_000)])
    _, to_h2, _, to_h4, _ = np.diff(sent, axis=0)[1].tolist()
    # 100 us in which a NIC fills the line, and a fifth of that
    assert to_h4 == pytest.approx(25e9 / 8 * 1e-4 * 1082 / 1106, rel=0.01)
    assert to_h2 == pytest.approx(to_h4 / 5, rel=0.05)
    # what it has, all of it, is read back
    assert seen[600_000].settings["dcqcn"]["rpg_max_rate"].tolist() == [5_000, 0, 0, 0, 0]
    changes = record.changes["dcqcn"]
    assert changes.targets.tolist() == [0, 0, 2]
    assert changes.rpg_max_rate.tolist() == [5_000, 0, 0]
    assert changes.rpg_byte_reset.tolist() == [DCQCN_SETS["paper"]["rpg_byte_reset"]] * 3
    assert changes.observed_ns.tolist() == [500_000, 1_000_000, 1_000_000]


def test_the_receiver_says_how_often_there_are_notifications_and_before_the_start_too(run):
    flows = tuple(
        SingleFlowSpec(source, to, 3_000_000, 0)
        for source, to in (("h1", "h2"), ("h3", "h2"), ("h4", "h5"), ("h3", "h5"))
    )
    seldom = DCQCN.change([4], min_time_between_cnps=1_000_000)
    _, seen = run(flows, lambda t_ns: () if t_ns else (seldom,))
    last = max(seen)
    heard = dict(zip(("h1", "h2", "h3", "h4", "h5"), seen[last]["host.cnps"].tolist(), strict=True))
    assert heard["h1"] >= 3
    assert heard["h4"] <= 1  # a CNP a second
    assert heard["h2"] == heard["h5"] == 0


def test_what_is_set_to_what_it_is_changes_nothing(run):
    traffic = (PoissonSpec("WebSearch", 0.6, 0, 2 * MS),)
    names = [column.name for column in DCQCN.columns if column.name != "rpg_byte_reset"]
    same = DCQCN.change(np.arange(24), **{name: dict(HOST.roce.parameters)[name] for name in names})
    nothing, _ = run(traffic, lambda _: (), testbed="graphcc")
    again, _ = run(traffic, lambda _: (same,), testbed="graphcc")
    one, other = (flattened(record_tables(record)) for record in (nothing, again))
    differ = [
        name
        for name in one
        if not name.startswith("changes/") and not np.array_equal(one[name], other[name])
    ]
    assert not differ
    assert len(again.changes["dcqcn"].targets) > 24 * 20
