"""DCQCN's reaction point, compiled from the guest's source, against sequences worked by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.datapath.flows import PARAMETER_ORDER
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tests.unit.policy_library import CNP, START, TX, US, compiled
from tests.unit.policy_library import Flow as PolicyFlow

LINE_BPS = 100_000_000_000


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled("dcqcn", tmp_path_factory.mktemp("policy"))


class Flow(PolicyFlow):
    def __init__(self, library, parameters):
        super().__init__(library, [parameters[name] for name in PARAMETER_ORDER], LINE_BPS)

    def change(self, parameters, now_ns):
        numbers = [parameters[name] for name in PARAMETER_ORDER]
        return super().change(numbers, now_ns) / LINE_BPS


def share(flow, event, now_ns, size_bytes=0):
    return flow.tell(event, now_ns, size_bytes) / LINE_BPS


def test_a_flow_starts_at_line_rate_and_stays_there_without_cnps(library):
    flow = Flow(library, DCQCN_SETS["mlx5"])
    assert share(flow, START, 0) == 1
    for now_us in range(1, 2_000):
        assert share(flow, TX, now_us * US, 1_500) == 1


def test_one_cnp_halves_the_rate_at_the_next_period_and_it_recovers_by_halves(library):
    parameters = {**DCQCN_SETS["mlx5"], "rpg_byte_reset": 0}
    flow = Flow(library, parameters)
    flow.tell(START, 0)
    # reduced at the beginning of the next period of 4 us, not before
    assert share(flow, CNP, 10 * US) == 1
    assert share(flow, TX, 13 * US) == 1
    # alpha has decayed four times by then: 1023 (1019/1024)^4 / 2048
    cut = 1023 / 2048 * (1019 / 1024) ** 4
    assert share(flow, TX, 14 * US) == pytest.approx(1 - cut, abs=1e-3)
    # the target is still the line's rate: half of the way back at each 300 us
    assert share(flow, TX, 314 * US - 1) == pytest.approx(1 - cut, abs=1e-3)
    assert share(flow, TX, 314 * US) == pytest.approx(1 - cut / 2, abs=1e-3)
    assert share(flow, TX, 614 * US) == pytest.approx(1 - cut / 4, abs=1e-3)


def test_after_fast_recovery_the_target_rises_by_ai_then_by_hai(library):
    parameters = {
        **DCQCN_SETS["mlx5"],
        "rpg_byte_reset": 0,
        "clamp_tgt_rate": 1,
        "rpg_threshold": 2,
        "rpg_ai_rate": 1_000,
        "rpg_hai_rate": 4_000,
    }
    flow = Flow(library, parameters)
    flow.tell(START, 0)
    flow.tell(CNP, 0)
    flow.tell(CNP, 5 * US)
    rate = share(flow, TX, 8 * US)
    target = share(Flow(library, parameters), START, 0)
    # two reductions: at 4 us from line rate, at 8 us from there, which is then the target
    first = 1 - 1023 / 2048 * (1019 / 1024) ** 4
    assert rate < first * 0.55
    target = first
    for stage, raised in enumerate((0, 0, 0.01, 0.04, 0.04)):
        target = min(1, target + raised)
        rate = (rate + target) / 2
        now_ns = (8 + 300 * (stage + 1)) * US
        assert share(flow, TX, now_ns) == pytest.approx(rate, abs=1e-3), stage


@pytest.mark.parametrize("raised_by", ["time", "bytes", "both", "nothing"])
@pytest.mark.parametrize("after_time", [0, 1])
def test_a_cut_takes_the_rate_before_it_for_the_target_if_that_was_raised(
    library, raised_by, after_time
):
    """Mellanox, "DCQCN Parameters": after an increase by time only if the parameter says so."""
    parameters = {
        **DCQCN_SETS["mlx5"],
        "rpg_byte_reset": 1_000_000,
        "rpg_threshold": 31,
        "clamp_tgt_rate_after_time_inc": after_time,
        "rpg_time_reset": 300 if raised_by in ("time", "both") else 100_000,
    }
    flow = Flow(library, parameters)
    flow.tell(START, 0)
    flow.tell(CNP, 0)
    share(flow, TX, 4 * US)
    if raised_by != "nothing":
        share(flow, TX, 310 * US, 1_000_000 if raised_by in ("bytes", "both") else 0)
    flow.tell(CNP, 400 * US)
    before = share(flow, TX, 400 * US)
    after = share(flow, TX, 404 * US)
    assert after < before < 1
    # the next increase is half of the way to the target: the line, or the rate before the cut
    target = before if raised_by in ("bytes", "both") or (raised_by == "time" and after_time) else 1
    again = share(flow, TX, 405 * US, 1_000_000)
    assert again == pytest.approx((after + target) / 2, abs=1e-6)


def test_what_was_due_before_new_parameters_happens_by_the_old_ones(library):
    before = {**DCQCN_SETS["mlx5"], "rpg_byte_reset": 0}
    flow = Flow(library, before)
    flow.tell(START, 0)
    flow.tell(CNP, 0)
    cut = 1 - share(flow, TX, 4 * US)
    # one increase at 304 us and one at 604, both scheduled by then; the next ones 10 us apart
    rate = flow.change({**before, "rpg_time_reset": 10}, 400 * US)
    assert rate == pytest.approx(1 - cut / 2, abs=1e-3)
    assert share(flow, TX, 604 * US - 1) == pytest.approx(1 - cut / 2, abs=1e-3)
    assert share(flow, TX, 604 * US) == pytest.approx(1 - cut / 4, abs=1e-3)
    assert share(flow, TX, 614 * US) == pytest.approx(1 - cut / 8, abs=1e-3)


def test_new_bounds_of_a_rate_hold_at_once(library):
    mlx5 = DCQCN_SETS["mlx5"]
    flow = Flow(library, mlx5)
    flow.tell(START, 0)
    assert flow.change({**mlx5, "rpg_max_rate": 10_000}, 10 * US) == 0.1
    assert flow.change({**mlx5, "rpg_max_rate": 200_000}, 20 * US) == 1
    flow.tell(CNP, 20 * US)
    cut = share(flow, TX, 24 * US)
    assert 0.4 < cut < 0.6
    assert flow.change({**mlx5, "rpg_min_rate": 70_000}, 25 * US) == 0.7
    assert flow.change({**mlx5, "rpg_max_rate": 30_000}, 26 * US) == 0.3
    # the target, too, is within the bounds: there is nothing to recover
    assert share(flow, TX, 400 * US) == 0.3


def test_bytes_that_were_sent_before_a_smaller_byte_counter_raise_the_rate_once_at_most(library):
    mlx5 = DCQCN_SETS["mlx5"]
    flow = Flow(library, mlx5)
    flow.tell(START, 0)
    flow.tell(CNP, 0)
    rate = share(flow, TX, 4 * US, 32_000)
    assert flow.change({**mlx5, "rpg_byte_reset": 1_000}, 5 * US) == rate
    assert share(flow, TX, 6 * US, 999) == rate
    assert share(flow, TX, 7 * US, 1) > rate


def test_bytes_raise_the_rate_too(library):
    flow = Flow(library, DCQCN_SETS["mlx5"])
    flow.tell(START, 0)
    flow.tell(CNP, 0)
    low = share(flow, TX, 4 * US, 0)
    assert share(flow, TX, 5 * US, 32_766) == pytest.approx(low, abs=1e-6)
    assert share(flow, TX, 5 * US, 1) == pytest.approx((low + 1) / 2, abs=1e-3)


def test_a_rate_is_not_cut_below_its_floors(library):
    for floor, parameters in (
        (0.75 * 0.75, {"rpg_min_dec_fac": 75}),
        (0.30, {"rpg_min_rate": 30_000}),
    ):
        flow = Flow(library, {**DCQCN_SETS["mlx5"], "clamp_tgt_rate": 1, **parameters})
        flow.tell(START, 0)
        flow.tell(CNP, 0)
        flow.tell(CNP, 5 * US)
        assert share(flow, TX, 8 * US) == pytest.approx(floor, abs=1e-3)


class Model:
    """The algorithm in floating point with a step a microsecond, written apart from the C."""

    def __init__(self, p):
        self.p, self.rate, self.target, self.alpha = p, 1.0, 1.0, 0.0
        self.first = self.rise_at = None
        self.stage, self.marked, self.pending = 0, False, False

    def cnp(self, now_us):
        if self.first is None:
            self.first, self.alpha = now_us, self.p["initial_alpha_value"] / 1024
        else:
            self.marked = True
        self.pending = True

    def step(self, now_us):
        """Everything that the timers do at `now_us`: alpha, then a reduction, then an increase."""
        p = self.p
        if self.first is None or now_us == self.first:
            return
        since = now_us - self.first
        if since % p["dce_tcp_rtt"] == 0:
            g = 1 - p["dce_tcp_g"] / 1024
            self.alpha = (1 - g) * self.alpha + (g if self.marked else 0)
            self.marked = False
        if self.pending and since % p["rate_reduce_monitor_period"] == 0:
            if p["clamp_tgt_rate"] or self.stage:
                self.target = self.rate
            minimum = max(self.rate / 2, p["rpg_min_rate"] / 1e5)
            self.rate = max(self.rate * (1 - self.alpha / 2), minimum)
            self.stage, self.pending = 0, False
            self.rise_at = now_us + p["rpg_time_reset"]
        elif self.rise_at == now_us:
            if self.stage > p["rpg_threshold"]:
                self.target += p["rpg_hai_rate"] / 1e5
            elif self.stage == p["rpg_threshold"]:
                self.target += p["rpg_ai_rate"] / 1e5
            self.target = min(1.0, self.target)
            self.rate = (self.rate + self.target) / 2
            self.stage += 1
            self.rise_at += p["rpg_time_reset"]


@settings(deadline=None, max_examples=60)
@given(
    gaps=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    name=st.sampled_from(["mlx5", "hpcc", "paper"]),
)
def test_it_follows_a_model_of_its_own_whatever_the_cnps(library, gaps, name):
    # without a count of bytes, which would depend on what is sent
    parameters = {**DCQCN_SETS[name], "rpg_byte_reset": 0}
    flow, model, now_us = Flow(library, parameters), Model(parameters), 0
    flow.tell(START, 0)
    for gap in gaps:
        for _ in range(gap):
            now_us += 1
            model.step(now_us)
        model.cnp(now_us)
        assert share(flow, CNP, now_us * US) == pytest.approx(model.rate, abs=4e-3)
    for _ in range(1_000):
        now_us += 1
        model.step(now_us)
    assert share(flow, TX, now_us * US) == pytest.approx(model.rate, abs=4e-3)
