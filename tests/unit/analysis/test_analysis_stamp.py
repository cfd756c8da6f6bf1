import dataclasses

import numpy as np
import pytest

from orchestration.analysis.stamp import stamp
from orchestration.core.records import FAILED, UNFINISHED, FlowRecords, Samples
from orchestration.core.trial import FaultSpec
from orchestration.results.stamp import Stamp
from traffic.schedule import select_flows


def judge(case) -> Stamp:
    """Return the stamp, without what test_overload.py has: flows too large for the trial."""
    verdict = stamp(case.trial, case.testbed, case.schedule, case.record)
    reasons = tuple(reason for reason in verdict.reasons if reason.code != "overload")
    return dataclasses.replace(verdict, reasons=reasons)


def changed(case, part, **arrays):
    """Return the case with functions applied to arrays of its record's flows or ports."""
    old = getattr(case.record, part)
    new = {}
    for name, change in arrays.items():
        new[name] = getattr(old, name).copy()
        change(new[name])
    if part == "flows":
        flows = dataclasses.replace(old, **new)
        return dataclasses.replace(case, record=dataclasses.replace(case.record, flows=flows))
    return with_ports(case, Samples(new.pop("t_ns", old.t_ns), {**old.values, **new}))


def with_ports(case, ports):
    samples = {**case.record.samples, "queue": ports}
    return dataclasses.replace(case, record=dataclasses.replace(case.record, samples=samples))


def facts(case, **changes):
    new = {**case.record.facts, **changes}
    record = dataclasses.replace(case.record, facts=new)
    return dataclasses.replace(case, record=record)


def codes(verdict: Stamp):
    return [reason.code for reason in verdict.reasons]


def to_host(case, host):
    return next(
        q
        for q, port in enumerate(case.testbed.queues)
        if case.testbed.peer_device(port).name == host
    )


def test_a_sound_trial_is_valid_and_lists_its_checks(case):
    verdict = judge(case)
    assert verdict.valid
    assert verdict.reasons == ()
    assert "bytes delivered" in verdict.checked
    assert "offloads" in verdict.checked


def test_what_the_backend_does_not_say_is_not_checked(case):
    bare = dataclasses.replace(case, record=dataclasses.replace(case.record, facts={}))
    assert "offloads" not in judge(bare).checked


@pytest.mark.parametrize(("late_ns", "valid"), [(2_000, True), (2_001, False), (-2_001, False)])
def test_a_late_generator_is_invalid_beyond_two_microseconds(case, late_ns, valid):
    start = case.schedule.start_ns[4]
    late = changed(case, "flows", sent_ns=lambda sent: sent.__setitem__(4, start + late_ns))
    verdict = judge(late)
    assert verdict.valid is valid
    assert codes(verdict) == ([] if valid else ["generator-late"])
    if not valid:
        assert "flow 4" in verdict.reasons[0].text


def test_a_trial_in_whose_measured_time_nothing_is_sent_is_invalid(case):
    last_ns = int(case.record.flows.end_ns.max())
    assert last_ns > case.trial.duration_ns
    for warm_up_ns, valid in ((case.trial.warm_up_ns, True), (last_ns, False)):
        trial = dataclasses.replace(
            case.trial, warm_up_ns=warm_up_ns, duration_ns=last_ns + 10**6, drain_ns=0
        )
        verdict = judge(dataclasses.replace(case, trial=trial))
        assert ("nothing-sent" in codes(verdict)) is not valid
    none = {name: values[:0] for name, values in vars(case.record.flows).items()}
    empty = dataclasses.replace(
        case,
        schedule=select_flows(case.schedule, np.zeros(len(case.schedule), dtype=bool)),
        record=dataclasses.replace(case.record, flows=FlowRecords(**none)),
    )
    (found,) = (one for one in judge(empty).reasons if one.code == "nothing-sent")
    assert found.severity == "invalid"
    assert found.text.startswith("no flow sends from 0ns to ")


@pytest.mark.parametrize(
    ("status", "code"), [(UNFINISHED, "flows-unfinished"), (FAILED, "flows-failed")]
)
def test_flows_that_did_not_end_well_are_invalid(case, status, code):
    verdict = judge(changed(case, "flows", status=lambda values: values.__setitem__(0, status)))
    assert not verdict.valid
    assert code in codes(verdict)


@pytest.mark.parametrize(("late_ns", "valid"), [(50_000, True), (50_001, False)])
def test_a_sample_more_than_half_a_period_late_is_invalid(case, late_ns, valid):
    verdict = judge(changed(case, "ports", t_ns=lambda t: t.__setitem__(7, t[7] + late_ns)))
    assert ("sampler-behind" in codes(verdict)) is not valid


def keep(case, samples):
    ports = case.record.ports
    values = {name: column[samples] for name, column in ports.values.items()}
    return with_ports(case, Samples(ports.t_ns[samples], values))


def test_a_missed_period_is_invalid(case):
    every = np.arange(len(case.record.ports.t_ns))
    verdict = judge(keep(case, every != 5))
    assert codes(verdict) == ["sampler-behind"]
    assert verdict.reasons[0].text.startswith("1 of ")


def test_samples_that_end_before_the_flows_are_missed(case):
    assert "sampler-behind" in codes(judge(keep(case, slice(0, 10))))


def test_no_samples_at_all_are_missed_and_prove_no_bytes(case):
    verdict = judge(keep(case, slice(0, 0)))
    assert "sampler-behind" in codes(verdict)
    assert "bytes delivered" not in verdict.checked


def test_the_last_sample_may_come_early(case):
    end = int(case.record.flows.end_ns.max())
    early = changed(case, "ports", t_ns=lambda t: t.__setitem__(-1, end + 10))
    assert "sampler-behind" not in codes(judge(early))


def test_a_link_above_its_rate_is_invalid(case):
    queue = to_host(case, "h3")
    packets = 220  # 338,360 bytes on the wire in 100 us; the link carries 312,500

    def burst(unit):
        return lambda counter: counter.__setitem__(
            (slice(6, None), queue), counter[6:, queue] + packets * unit
        )

    idle = changed(case, "ports", tx_bytes=burst(1514), tx_packets=burst(1))
    verdict = judge(idle)
    assert "link-over-rate" in codes(verdict)
    reason = verdict.reasons[codes(verdict).index("link-over-rate")]
    assert "above" not in reason.text
    assert case.testbed.queues[queue].label in reason.text


def test_framing_counts_against_the_rate(case):
    """Full frames at 25 Gbit/s of frame bytes are 1.6 % too many on the wire."""
    queue, step = to_host(case, "h3"), 206

    def steady(unit):
        rows = np.arange(len(case.record.ports.t_ns))
        return lambda counter: counter.__setitem__((slice(None), queue), rows * step * unit * 10)

    fast = changed(case, "ports", tx_bytes=steady(1514), tx_packets=steady(1))
    slow_clock = changed(fast, "ports", t_ns=lambda t: t.__imul__(10))
    assert "link-over-rate" in codes(judge(slow_clock))


def test_a_busy_link_below_its_rate_is_invalid_unless_links_were_taken_down(case):
    queue = to_host(case, "h3")
    stuck = changed(
        case, "ports", qlen_bytes=lambda q: q.__setitem__((slice(None), queue), 2_000_000)
    )
    assert "link-below-rate" in codes(judge(stuck))
    fault = FaultSpec(0, None, 0, ("leaf0-spine0",))
    planned = dataclasses.replace(stuck, trial=dataclasses.replace(case.trial, faults=(fault,)))
    assert "link-below-rate" not in codes(judge(planned))


def test_a_counter_that_goes_backwards_is_invalid(case):
    back = changed(case, "ports", tx_packets=lambda c: c.__setitem__((9, 0), c[9, 0] - 50_000))
    assert "counters-disagree" in codes(judge(back))


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_bytes_that_disagree_by_more_than_a_percent_are_invalid(case, factor):
    host = int(np.argmax(np.bincount(case.schedule.dst, case.schedule.size_bytes)))
    queue = to_host(case, f"h{host}")

    def scale(counter):
        counter[:, queue] = (counter[:, queue] * factor).astype(np.int64)

    verdict = judge(changed(case, "ports", tx_bytes=scale))
    assert "counters-disagree" in codes(verdict)


def test_headers_acknowledgements_and_retransmits_are_accounted_for(case):
    """A host gets 40 segments twice and 10,000 acknowledgements: all explained, so valid."""
    host = int(np.argmax(np.bincount(case.schedule.dst, case.schedule.size_bytes)))
    queue, flow = to_host(case, f"h{host}"), int(np.flatnonzero(case.schedule.dst == host)[0])

    def more(amount):
        rows = np.arange(1, len(case.record.ports.t_ns) + 1) / len(case.record.ports.t_ns)
        return lambda counter: counter.__setitem__(
            (slice(None), queue), counter[:, queue] + (rows * amount).astype(np.int64)
        )

    mss = case.testbed.mss_bytes
    resent = changed(
        case, "ports", tx_bytes=more(40 * (mss + 66) + 10_000 * 66), tx_packets=more(10_040)
    )
    known = changed(resent, "flows", retransmits=lambda r: r.__setitem__(flow, 40))
    assert "counters-disagree" not in codes(judge(known))


def test_drops_are_a_warning_and_leave_the_trial_valid(case):
    lossy = changed(case, "ports", dropped_packets=lambda d: d.__setitem__((slice(8, None), 3), 12))
    verdict = judge(lossy)
    assert verdict.valid
    assert codes(verdict) == ["drops"]
    assert "12 packets" in verdict.reasons[0].text


def test_offloads_that_are_on_are_invalid(case):
    verdict = judge(facts(case, offloads_on=["leaf1:eth0", "h3:eth0"]))
    assert codes(verdict) == ["offloads-on"]
    assert "leaf1:eth0, h3:eth0" in verdict.reasons[0].text


def test_flows_that_are_faster_than_light_are_a_warning(case):
    def fast(end):
        end[0] = case.schedule.start_ns[0] + 10

    verdict = judge(changed(case, "flows", end_ns=fast))
    assert codes(verdict) == ["faster-than-ideal"]
    assert verdict.valid


def test_a_stamp_survives_json(case):
    verdict = judge(facts(case, offloads_on=["x"]))
    assert Stamp.from_json(verdict.to_json()) == verdict
