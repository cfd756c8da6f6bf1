"""Offered, arriving and delivered load: from schedules, in plans, and in finished trials."""

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from orchestration.analysis.load import load_facts, measure_load, to_json
from orchestration.analysis.stamp import stamp
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.plan import make_plan
from orchestration.cli.main import app
from orchestration.core.pattern import STRATA
from orchestration.core.ports import TrialRun
from orchestration.core.records import LONG_LIVED, MISSING, UNFINISHED, Samples, Schedule
from orchestration.results.reader import LOAD_FACT, read_trial, recorded_load_shares
from orchestration.results.writer import write_trial
from tests.testbeds import star
from tests.trials import trial_spec
from traffic.delivery import deliverable_bytes, offered_bytes, payload_rates_bps
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_schedule

MS = 10**6
STAR = star(25, 25, 50, 10)


def schedule_of(*flows):
    """Return flows (start in us, source, destination, bytes)."""
    start, src, dst, size = np.array(sorted(flows), dtype=np.int64).reshape(-1, 4).T
    return Schedule(start * 1000, src, dst, size, np.zeros(len(start), np.int64), ("flows",))


def left_by(schedule, host, rates_bps, at_ns):
    """What links have not carried by a time, one flow after the other."""
    total = 0.0
    for number in range(len(STAR.hosts)):
        free_ns = 0.0
        for start_ns, size in zip(
            schedule.start_ns[host == number], schedule.size_bytes[host == number], strict=True
        ):
            if start_ns < at_ns:
                free_ns = max(free_ns, start_ns) + size * 8e9 / rates_bps[number]
        total += max(0.0, free_ns - at_ns) * rates_bps[number] / 8e9
    return total


@settings(max_examples=60)
@given(
    flows=st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 3), st.integers(0, 3), st.integers(1, 10**6)),
        min_size=1,
        max_size=30,
    ),
    begin_us=st.integers(0, 500),
)
def test_what_can_arrive_is_what_links_carry_that_are_never_idle(flows, begin_us):
    schedule, rates_bps = schedule_of(*flows), payload_rates_bps(STAR)
    window = (begin_us * 1000, MS)
    grown = max(
        left_by(schedule, side, rates_bps, window[1])
        - left_by(schedule, side, rates_bps, window[0])
        for side in (schedule.src, schedule.dst)
    )
    offered = offered_bytes(schedule, window)
    assert offered == sum(size for start, _, _, size in flows if start >= begin_us)
    found = deliverable_bytes(schedule, STAR, window)
    assert found == pytest.approx(offered - grown, abs=1)
    if not begin_us:
        assert found <= offered + 1e-6


def test_one_long_flow_arrives_as_far_as_its_slower_link_carries():
    schedule = schedule_of((200, 2, 3, 50_000_000))  # 50 to 10 Gbit/s, for 0.8 ms
    assert deliverable_bytes(schedule, STAR, (0, MS)) == pytest.approx(
        payload_rates_bps(STAR)[3] * 0.8e-3 / 8
    )


TRIAL = trial_spec(
    testbed="star",
    traffic=(
        PoissonSpec("WebSearch", 0.6, 0, 3 * MS, draw=STRATA),
        IncastSpec(3, 64_000, MS, 0, 3 * MS),
    ),
    seed=7,
    duration_ns=3 * MS,
    drain_ns=300 * MS,
    sample_period_ns=100_000,
)


@pytest.fixture
def ran(tmp_path):
    """Run a trial on the fluid backend."""

    def run(**changes):
        trial = dataclasses.replace(TRIAL, **changes)
        schedule = make_schedule(trial, STAR)
        record = FluidBackend().run(TrialRun(trial, STAR, schedule, tmp_path))
        return trial, schedule, record

    return run


@pytest.mark.parametrize("warm_up_ns", [0, MS])
def test_load_is_what_flows_offer_and_ports_send(ran, warm_up_ns):
    trial, schedule, record = ran(warm_up_ns=warm_up_ns)
    told = load_facts(trial, STAR, schedule, record)[LOAD_FACT]
    capacity = 110e9 / 8 * (3 * MS - warm_up_ns) / 1e9
    assert told["capacity_bytes"] == round(capacity)
    late = schedule.start_ns >= warm_up_ns
    assert told["offered_bytes"] == schedule.size_bytes[late].sum()
    assert told["offered_load"] == pytest.approx(told["offered_bytes"] / capacity, abs=1e-6)
    parts = told["patterns"]
    assert list(parts) == ["poisson:WebSearch", "incast"]
    for name, klass in (("poisson:WebSearch", 0), ("incast", 1)):
        mine = late & (schedule.klass == klass)
        assert parts[name]["offered_bytes"] == schedule.size_bytes[mine].sum()
    for key in ("offered_bytes", "delivered_bytes"):
        assert sum(part[key] for part in parts.values()) == pytest.approx(told[key], abs=2)
    # of the 9 or 6 small messages of the incast all arrive, of the rest at most what can
    assert parts["incast"]["delivered_bytes"] == pytest.approx(
        parts["incast"]["offered_bytes"], rel=0.15
    )
    if not warm_up_ns:
        maximum = deliverable_bytes(schedule, STAR, trial.measured_ns)
        assert 0.5 * maximum < told["delivered_bytes"] < 1.01 * maximum


def test_without_counters_flows_have_one_rate_from_start_to_end(ran):
    trial, schedule, record = ran()
    with_ports = load_facts(trial, STAR, schedule, record)[LOAD_FACT]
    ports = record.ports
    unread = {name: np.full_like(one, MISSING) for name, one in ports.values.items()}
    blind = dataclasses.replace(
        record, samples={**record.samples, "queue": Samples(ports.t_ns, unread)}
    )
    told = load_facts(trial, STAR, schedule, blind)[LOAD_FACT]
    assert told["delivered_load"] == pytest.approx(with_ports["delivered_load"], rel=0.25)
    ends, flows = blind.flows.end_ns, schedule
    inside = np.clip((3 * MS - flows.start_ns) / (ends - flows.start_ns), 0, 1)
    assert told["delivered_bytes"] == pytest.approx((flows.size_bytes * inside).sum(), abs=1)
    # what receivers had of flows that did not finish is unknown
    for status in (UNFINISHED, LONG_LIVED):
        codes = np.full(len(flows), status)
        cut = dataclasses.replace(blind, flows=dataclasses.replace(blind.flows, status=codes))
        delivered = load_facts(trial, STAR, schedule, cut)[LOAD_FACT]["delivered_bytes"]
        assert delivered is None


def test_a_trial_that_did_not_write_it_down_has_the_same_load(ran, tmp_path):
    trial, schedule, record = ran(warm_up_ns=MS)
    verdict = stamp(trial, STAR, schedule, record)
    facts = load_facts(trial, STAR, schedule, record)
    for name, more in (("new", facts), ("old", {})):
        write_trial(tmp_path / name, trial, STAR, schedule, record, verdict, more)
    new, old = (measure_load(read_trial(tmp_path / name)) for name in ("new", "old"))
    assert to_json(new) == to_json(old) == facts[LOAD_FACT]


def test_what_an_earlier_version_called_delivered_is_not_shown_as_that(ran, tmp_path):
    trial, schedule, record = ran(warm_up_ns=MS)
    facts = load_facts(trial, STAR, schedule, record)
    arrived = {"delivered_bytes": 7, "delivered_load": 0.7}
    told = {**facts[LOAD_FACT], "patterns": {}, **arrived}
    earlier = {key: value for key, value in told.items() if not key.startswith("discarded")}
    write_trial(
        tmp_path / "t",
        trial,
        STAR,
        schedule,
        record,
        stamp(trial, STAR, schedule, record),
        {LOAD_FACT: earlier},
    )
    result = read_trial(tmp_path / "t")
    assert to_json(measure_load(result)) == facts[LOAD_FACT]
    shares = recorded_load_shares(result)
    assert shares == {
        "offered_load": facts[LOAD_FACT]["offered_load"],
        "delivered_load": None,
        "discarded_load": None,
    }
    lasting = dataclasses.replace(result.spec, traffic=(ConcurrentSpec(2, 0, 0, "h1"),))
    assert recorded_load_shares(dataclasses.replace(result, spec=lasting))["offered_load"] is None


CAMPAIGN = """\
campaign: short
testbed: graphcc
backend: fluid
tuners: [secn1, secn2]
traffic:
  - {kind: poisson, workload: $workload, load: $load}
factors:
  load: [0.6, 0.2]
  workload: [WebSearch, AliStorage2019]
repeats: 3
duration: 10ms
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "short.yml"
    path.write_text(CAMPAIGN)
    return path


def planned(path, tmp_path):
    found = make_plan(load_campaign(path), 1, tmp_path).deliverable_loads
    return {one.conditions[0]: one for one in found}


def test_a_plan_says_per_condition_what_cannot_arrive_and_what_to_do(file, tmp_path):
    found = planned(file, tmp_path)
    assert list(found) == sorted(found)
    assert len(found) == 4
    short = found["load 0.6, workload WebSearch"]
    assert (short.intended, short.measured_ns) == (pytest.approx(0.6), (0, 10 * MS))
    assert short.offered == pytest.approx(0.6, abs=0.01)
    assert 0.6 < short.share < 0.75
    assert not short.enough
    assert short.sentence.startswith(
        "load 0.6, workload WebSearch: 59.9% of the hosts' line rate is offered"
    )
    assert "can be delivered within 10ms: use duration: " in short.sentence
    assert short.sentence.endswith(f"or report it as a load of {short.deliverable:.2g}")
    assert found["load 0.2, workload AliStorage2019"].enough


@pytest.mark.slow
@pytest.mark.parametrize("remedy", ["longer", "settled"])
def test_what_a_plan_advises_helps(file, tmp_path, remedy):
    short = planned(file, tmp_path)["load 0.6, workload WebSearch"]
    end_ns = short.longer_ns if remedy == "longer" else short.settled_ns + 10 * MS
    text = CAMPAIGN.replace("duration: 10ms", f"duration: {end_ns}ns")
    if remedy == "settled":
        text += f"warm_up: {short.settled_ns}ns\n"
    file.write_text(text)
    better = planned(file, tmp_path)["load 0.6, workload WebSearch"]
    assert better.share > 0.87
    assert better.share > short.share + 0.15


def test_incasts_at_a_load_count_as_intended(file, tmp_path):
    """Those with a period count as offered only, as their load is nobody's intention."""
    incast = "  - {{kind: incast, fan_in: 16, size: 500KB, {}, arrivals: poisson}}\nfactors:"
    found = {}
    for how in ("load: 0.02", "period: 5333us"):
        file.write_text(CAMPAIGN.replace("factors:", incast.format(how)))
        found[how] = planned(file, tmp_path)["load 0.2, workload AliStorage2019"]
    by_load, by_period = found.values()
    assert by_load.intended == pytest.approx(0.22)
    assert by_period.intended == pytest.approx(0.2)
    assert by_load.offered == pytest.approx(by_period.offered, rel=0.02)
    file.write_text(
        CAMPAIGN.replace(
            "kind: poisson, workload: $workload", "kind: incast, fan_in: 16, size: 5MB"
        ).replace("  workload: [WebSearch, AliStorage2019]\n", "")
    )
    alone = planned(file, tmp_path)["load 0.6"]
    assert alone.intended == pytest.approx(0.6)
    assert not alone.enough


def test_flows_that_last_offer_no_load(file, tmp_path):
    nics = CAMPAIGN.replace("backend: fluid", "host: {congestion_control: dcqcn}")
    file.write_text(nics)
    alone = planned(file, tmp_path)
    lasting = "  - {kind: concurrent, flows: 4, receiver: h1}\nfactors:"
    file.write_text(nics.replace("factors:", lasting))
    assert planned(file, tmp_path) == alone


@pytest.mark.slow
def test_verbs_tell_it(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(app, ["plan", str(file)]).output
    said = " ".join(text.split())
    assert said.count("of it can be delivered within 10ms") == 1  # WebSearch at its higher load ...
    assert re.search(r"likewise load 0\.\d, workload WebSearch \(\d+%\); duration: \d+ms", said)
    told = json.loads(CliRunner().invoke(app, ["plan", str(file), "--json"]).output)["arriving"]
    assert [one["enough"] for one in told] == [True, False, True, False]
    assert set(told[1]) >= {"conditions", "asked", "offered", "arrives", "share", "longer_ns"}
    quick = CAMPAIGN.replace("10ms", "1ms").replace("repeats: 3", "repeats: 1")
    file.write_text(quick)
    done = CliRunner().invoke(app, ["run", str(file), "--no-report", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert "of it can be delivered within 1ms" in done.stderr
    assert "more such: closloop plan CAMPAIGN)" in done.stderr
    report = json.loads(CliRunner().invoke(app, ["report", "runs/short", "--json"]).stdout)
    assert set(report["trials"][0]["load"]) >= {"offered_load", "delivered_load", "patterns"}
