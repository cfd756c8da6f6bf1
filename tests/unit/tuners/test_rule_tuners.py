"""The rules and the placebo: what they answer to readings whose right answer is known."""

import dataclasses
import itertools

import numpy as np
import pytest

from orchestration.core.knobs import ECN
from orchestration.core.records import Observation
from orchestration.core.roce import DCQCN_PARAMETERS
from orchestration.core.topology import Device, LinkSpec, Testbed, TrafficClass
from orchestration.core.trial import TunerSpec
from tuners import registry
from tuners.ecn import acc, graphcc, pet
from tuners.ecn.placebo import RandomEcn
from tuners.ecn.static import WithDcqcn
from tuners.ecn.templates import acc_templates, graphcc_templates

PERIOD_NS = 100_000
PERIOD_S = PERIOD_NS / 1e9
GIGABIT = 10**9
FRAME = 1514


def fabric(*gigabits: int, classes=()) -> Testbed:
    """One switch with a port of each rate."""
    devices = [Device(f"h{n}", "host", 0) for n in range(len(gigabits))]
    links = [LinkSpec(f"h{n}", "s1", rate * GIGABIT, 1000) for n, rate in enumerate(gigabits)]
    return Testbed.build(
        "one",
        [*devices, Device("s1", "switch", 1)],
        links,
        mtu_bytes=1500,
        buffer_bytes=4_000_000,
        classes=classes,
    )


class Driven:
    """A tuner that is shown what each queue sends and holds, period after period.

    Its steps return the change of thresholds, None for nothing.
    """

    def __init__(self, name: str, testbed: Testbed, seed: int = 7, **params) -> None:
        self.tuner = registry.create(TunerSpec(name, params))
        self.testbed = testbed
        self.rates = np.array([queue.rate_bps for queue in testbed.queues])
        (self.start,) = self.tuner.reset(testbed, seed).action
        self.threshold = self.start.kmin_bytes.copy()
        self.packets = np.zeros(len(self.rates))
        self.t_ns = 0

    def step(self, busy=0.0, qlen=0):
        """One period in which each link was busy for a share of the time; return the change."""
        self.t_ns += PERIOD_NS
        wire = FRAME + self.testbed.framing_bytes
        self.packets += np.asarray(busy) * self.rates * PERIOD_S / 8 / wire
        packets = np.rint(self.packets).astype(np.int64)
        zeros = np.zeros(len(self.rates), dtype=np.int64)
        action = self.tuner.act(
            Observation(
                t_ns=self.t_ns,
                age_ns=zeros,
                values={
                    "qlen_bytes": zeros + np.asarray(qlen),
                    "tx_bytes": packets * FRAME,
                    "tx_packets": packets,
                    "marked_packets": zeros,
                    "dropped_packets": zeros,
                },
                settings={"ecn": ECN.named(self.threshold, self.threshold, np.ones(len(zeros)))},
            )
        )
        if not action:
            return None
        (change,) = action
        assert change.knob == "ecn"
        if not isinstance(self.tuner, RandomEcn):
            assert (change.kmin_bytes == change.kmax_bytes).all(), "one threshold, as in DCTCP"
            assert (change.pmax == 1.0).all()
        self.threshold[change.targets] = change.kmin_bytes
        return change


# AMT


def test_amt_waits_for_two_readings():
    amt = Driven("amt", fabric(25, 25), start_bytes=50_000)
    assert amt.step(busy=[1.0, 0.0]) is None
    assert amt.step(busy=[1.0, 0.0]) is not None


def test_amt_lowers_the_threshold_of_a_full_link_and_raises_that_of_one_with_room():
    amt = Driven("amt", fabric(25, 25), start_bytes=50_000, step_bytes=4_000, cut=0.2)
    amt.step(busy=[1.0, 0.5])
    amt.step(busy=[1.0, 0.5])
    assert amt.threshold.tolist() == [40_000, 54_000]


@pytest.mark.parametrize(("busy", "end"), [(1.0, 5_000), (0.3, 100_000)])
def test_amt_stops_at_its_bounds_and_then_leaves_the_queue_alone(busy, end):
    amt = Driven("amt", fabric(25), start_bytes=60_000)
    for _ in range(60):
        action = amt.step(busy)
    assert amt.threshold.tolist() == [end]
    assert action is None


def test_amt_settles_at_the_least_threshold_that_keeps_the_link_full():
    """A link that loses throughput below 30 KB: the threshold ends up around that."""
    amt = Driven("amt", fabric(25), start_bytes=100_000)
    seen = []
    for _ in range(200):
        amt.step(min(1.0, 0.95 * amt.threshold[0] / 30_000))
        seen.append(int(amt.threshold[0]))
    assert min(seen[100:]) >= 0.88 * 30_000
    assert max(seen[100:]) <= 31_000 + 5_000


def test_amt_grows_with_the_rate():
    amt = Driven("amt", fabric(10, 25, 100))
    assert amt.threshold.tolist() == [40_000, 100_000, 400_000]
    for _ in range(100):
        amt.step(busy=1.0)
    assert amt.threshold.tolist() == [3_000, 5_000, 20_000], "two packets at the least"


def test_amt_counts_what_all_queues_of_a_port_send():
    classes = (TrafficClass("a", 70), TrafficClass("b", 30))
    amt = Driven("amt", fabric(25, classes=classes))
    before = amt.threshold.copy()
    for _ in range(3):
        amt.step(busy=[0.7, 0.3])
    assert (amt.threshold < before).all()


# QAECN


def test_qaecn_follows_its_own_queue():
    qaecn = Driven("qaecn", fabric(25, 25, 25), share=0.5)
    qaecn.step(qlen=[0, 60_000, 200_000])
    assert qaecn.threshold.tolist() == [5_000, 30_000, 100_000]
    qaecn.step(qlen=[40_000, 20_000, 0])
    assert qaecn.threshold.tolist() == [20_000, 10_000, 5_000]


def test_qaecn_keeps_to_its_bounds_which_grow_with_the_rate():
    qaecn = Driven("qaecn", fabric(25, 100))
    assert qaecn.threshold.tolist() == [5_000, 20_000]
    qaecn.step(qlen=4_000_000)
    assert qaecn.threshold.tolist() == [400_000, 1_600_000]


def test_qaecn_leaves_steady_queues_alone():
    qaecn = Driven("qaecn", fabric(25, 25))
    qaecn.step(qlen=[0, 100_000])
    assert qaecn.step(qlen=[0, 100_000]) is None
    assert qaecn.step(qlen=[0, 100_900]) is None, "less than a packet"
    changed = qaecn.step(qlen=[0, 110_000])
    assert changed.targets.tolist() == [1]


def test_a_standing_queue_stays_above_qaecns_threshold():
    qaecn = Driven("qaecn", fabric(25))
    for qlen in (30_000, 60_000, 120_000, 240_000):
        qaecn.step(qlen=qlen)
        assert qaecn.threshold[0] < qlen


# the placebo


def settings_of(changes):
    """Return the settings of changes as rows of kmin, kmax and pmax."""
    return np.concatenate([np.c_[a.kmin_bytes, a.kmax_bytes, a.pmax] for a in changes])


@pytest.mark.parametrize(
    ("name", "templates", "start"),
    [
        ("graphcc", graphcc_templates(), graphcc.START),
        ("acc", acc_templates(), acc.START_BYTES),
    ],
)
def test_the_placebo_draws_every_template_equally_often(name, templates, start):
    count, testbed = len(templates), fabric(*[25] * 40)
    placebo = Driven("random", testbed, seed=3, of=name)
    first = templates.nearest(*start)
    assert set(placebo.start.kmin_bytes) == {templates.kmin_bytes[first]}, "the tuner's own start"
    # longer than any kmin: no queue is idle
    drawn = [placebo.step(qlen=2_000_000_000) for _ in range(count)]
    known = np.c_[templates.kmin_bytes, templates.kmax_bytes, templates.pmax]
    found, times = np.unique(settings_of(drawn), axis=0, return_counts=True)
    assert {tuple(row) for row in found} == {tuple(row) for row in known}
    assert times.sum() == 40 * count
    assert times.min() > 10, "each is drawn some 40 times"
    assert times.max() < 80


def test_pets_placebo_draws_its_heads_and_puts_thresholds_in_order_as_pet_does():
    testbed = fabric(*[25] * 40)
    placebo = Driven("random", testbed, seed=3, of="pet")
    own = pet.thresholds(np.zeros(1, dtype=np.int64), np.array([pet.START_HEADS]))
    assert set(placebo.start.kmax_bytes) == set(own.kmax_bytes)
    rows = settings_of([placebo.step() for _ in range(1_500)])
    heads = np.array(list(itertools.product(*map(range, pet.HEADS))))
    every = settings_of([pet.thresholds(np.arange(len(heads)), heads)])
    wanted, weight = np.unique(every, axis=0, return_counts=True)
    found, times = np.unique(rows, axis=0, return_counts=True)
    assert {tuple(row) for row in found} == {tuple(row) for row in wanted}
    # pairs that come in either order are twice as likely, as PET's random actions have them
    assert np.corrcoef(weight, times)[0, 1] > 0.8


def test_accs_placebo_leaves_idle_queues_alone():
    placebo = Driven("random", fabric(25, 25, 25), seed=3, of="acc")
    change = placebo.step(qlen=np.array([0, 20_001, 20_000]))
    np.testing.assert_array_equal(change.targets, [1])
    assert registry.create(TunerSpec("random", {"of": "acc"})).observes == ("qlen_bytes",)
    assert registry.create(TunerSpec("random", {"of": "graphcc"})).observes == ()


def test_the_placebo_follows_its_seed():
    testbed = fabric(25, 25, 25, 25)
    one, same, other = (Driven("random", testbed, seed=seed) for seed in (1, 1, 2))
    rows = [np.concatenate([driven.step().pmax for _ in range(9)]) for driven in (one, same, other)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert (rows[0] != rows[2]).any()


def test_dcqcns_parameters_go_to_every_host_with_the_thresholds():
    testbed = fabric(25, 100)
    params = {"kmin_bytes": 1_000, "kmax_bytes": 2_000, "rpg_ai_rate": 50, "clamp_tgt_rate": 0}
    static = registry.create(TunerSpec("static", params))
    assert static.knobs == ("ecn", "dcqcn")
    _, nics = static.reset(testbed, 1).action
    assert {name: values.tolist() for name, values in nics.values.items()} == {
        "rpg_ai_rate": [50, 50],
        "clamp_tgt_rate": [0, 0],
    }
    plain = registry.create(TunerSpec("static", {"kmin_bytes": 1_000, "kmax_bytes": 2_000}))
    assert plain.knobs == ("ecn",)
    assert len(plain.reset(testbed, 1).action) == 1
    assert {one.name for one in dataclasses.fields(WithDcqcn)} == set(DCQCN_PARAMETERS)


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("random", {"of": "dcqcn"}, "use acc, graphcc, pet"),
        (
            "static",
            {"kmin_bytes": 1, "kmax_bytes": 2, "rpg_gd": 16},
            "rpg_gd 16 is outside 0..15",
        ),
        (
            "static",
            {"kmin_bytes": 1, "kmax_bytes": 2, "rpg_gd": 1.5},
            "rpg_gd 1.5 is not a whole number",
        ),
        ("amt", {"target": 1.5}, "target 1.5 is not a share"),
        ("amt", {"least_bytes": 9_000, "most_bytes": 8_000}, "swap or correct"),
        ("amt", {"least_bytes": 150_000}, "min_bytes 150000 is above max_bytes 100000"),
        ("qaecn", {"share": 0.0}, "share 0.0 is not a share"),
        ("qaecn", {"least_bytes": -1}, "below 0"),
    ],
)
def test_parameters_out_of_range_are_refused(name, params, says):
    assert any(says in fault.in_one_sentence for fault in registry.check(name, params))
