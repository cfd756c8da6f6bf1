"""Congestion controls in a guest: they converge, telemetry arrives, programs of one's own."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from orchestration.analysis.stamp import stamp
from orchestration.backends.emulated.bpf_programs import check_policies
from orchestration.bench.outcome import SECN1, run_trial
from orchestration.bench.repeatable import differing_values
from orchestration.core.engines import KERNEL
from orchestration.core.errors import InputError
from orchestration.core.records import DONE
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import FabricSpec, HostSpec
from orchestration.datapath import __file__ as data_path
from orchestration.datapath.flows import PARAMETER_ORDER
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tests.testbeds import single_switch
from traffic.patterns.single_flow import SingleFlowSpec

MS = 1_000_000
GOODPUT = 1024 / (1024 + 58 + 24)
SWITCH = single_switch("seventeen", 17, "25Gbps", buffer="64MB")


def under(control, **more):
    every = 1 if control in ("swift", "hpcc") else 16
    return HostSpec(control, roce=RoceSpec(control=control, ack_every=every, **more))


def incast(tmp_path, senders, size_bytes, host, *, apart_ns=20_000, engine=KERNEL):
    """Flows to one host that start one after another."""
    path = tmp_path / "seventeen.yml"
    path.write_text(SWITCH)
    flows = tuple(
        SingleFlowSpec(f"h{n + 2}", "h1", size_bytes, apart_ns * n) for n in range(senders)
    )
    run = run_trial(
        str(path),
        flows,
        SECN1,
        duration_ns=40 * MS,
        sample_period_ns=20_000,
        host=host,
        fabric=FabricSpec("closloop"),
        engine=engine,
    )
    assert (run.record.flows.status == DONE).all()
    return run


# Whether its flows start one after another, the most that waits on average once they have
# converged, and the share of the line. Swift lets its target of 20 us wait, HPCC leaves 5 % of the
# line free. TIMELY has no single point of rest (Zhu et al., "ECN or Delay", CoNEXT 2016): flows
# that come later keep more; and without a window they send megabytes before they hear of a queue.
@pytest.mark.parametrize(
    ("control", "senders", "size_bytes", "apart_ns", "more", "queue_bytes", "share"),
    [
        ("swift", 2, 10_000_000, 20_000, {}, 75_000, 0.99),
        ("swift", 16, 2_000_000, 20_000, {}, 110_000, 0.99),
        ("hpcc", 2, 10_000_000, 20_000, {}, 2_000, 0.93),
        ("hpcc", 16, 2_000_000, 20_000, {}, 6_000, 0.88),
        ("timely", 2, 20_000_000, 0, {}, 100_000, 0.8),
        ("timely", 16, 2_000_000, 0, {"window_bytes": 100_000}, 600_000, 0.8),
    ],
)
def test_flows_end_fair_with_short_queues(
    tmp_path, control, senders, size_bytes, apart_ns, more, queue_bytes, share
):
    run = incast(tmp_path, senders, size_bytes, under(control, **more), apart_ns=apart_ns)
    ends, ports, facts = run.record.flows.end_ns, run.record.ports, run.record.facts
    rates = 1 / (ends - run.schedule.start_ns)
    assert rates.sum() ** 2 / (senders * (rates**2).sum()) > 0.98
    queue = ports.qlen_bytes.max(axis=0).argmax()
    later = (ports.t_ns > ends.min() / 2) & (ports.t_ns < ends.min() * 0.95)
    assert ports.qlen_bytes[later, queue].mean() < queue_bytes
    sent = np.ptp(ports.tx_packets[later, queue]) * 1024 * 8
    # what telemetry takes of the line is not the control's doing
    wire = 1106 / 1148 if control == "hpcc" else 1
    assert sent / np.ptp(ports.t_ns[later]) > 25 * share * wire * GOODPUT
    assert ports.dropped_packets[-1].sum() == 0
    # they do not hear marks: nothing is marked, and no CNP is sent
    assert (facts["marked"], facts["cnps"], facts["timeouts"]) == (0, 0, 0)


def test_telemetry_is_in_data_and_acknowledgements_and_counted(tmp_path):
    run = incast(tmp_path, 1, 1_024_000, under("hpcc"))
    ports = run.record.ports
    size = ports.tx_bytes[-1] / np.maximum(1, ports.tx_packets[-1])
    assert sorted(size[size > 0]) == [62 + 42, 1024 + 58 + 42]
    # and the check of counters against flows knows of it
    assert stamp(run.trial, run.testbed, run.schedule, run.record).valid


def program(path, numbers=(), **more):
    values = tuple((f"{n:02}", value) for n, value in enumerate(numbers))
    return RoceSpec(control="program", program=str(path), values=values, **more)


@pytest.mark.parametrize("name", ["mlx5", "paper"])
def test_dcqcn_as_a_program_gives_the_tables_of_the_one_built_in(tmp_path, engine, name):
    parameters = DCQCN_SETS[name]
    numbers = [parameters[item] for item in PARAMETER_ORDER]
    source = Path(data_path).with_name("policy_dcqcn.c")
    own = tuple(parameters.items())
    built_in = HostSpec("dcqcn", roce=RoceSpec(dcqcn=own))
    as_program = HostSpec("program", roce=program(source, numbers, dcqcn=own))
    one, other = (
        incast(tmp_path, 8, 1_000_000, host, engine=engine) for host in (built_in, as_program)
    )
    differ, values = differing_values(one, other)
    assert values > 1_000
    assert differ == 0
    assert one.record.facts["cnps"] > 0


POLICY = """
#include "policy.h"

CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
        %s
}

CL_POLICY(mine, 1, 0);
"""


def written(tmp_path, body):
    path = tmp_path / "mine.c"
    path.write_text(POLICY % body)
    return path


def test_a_program_may_divide_by_zero_which_gives_zero_in_bpf(tmp_path):
    # the NIC then sends at its least rate, 1 Mbit/s
    path = written(tmp_path, "flow->rate_bps = flow->line_bps / p[0];")
    run = incast(tmp_path, 1, 2_000, HostSpec("program", roce=program(path, [0])))
    assert run.record.flows.end_ns[0] == pytest.approx(1_106 * 8e3, rel=0.01)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("for (u64 i = 1; i; i += flow->own[0]) flow->own[1] += i;", "may loop without an end"),
        ("flow->rate_bps = flow->own[flow->bytes];", "past its state.*unbounded memory"),
        ("flow->rate_bps = ((u64 *)flow)[300];", "past its state"),
        ("flow->rate_bps = *(u64 *)flow->own[0];", "a number as an address"),
    ],
)
def test_a_program_that_the_kernel_refuses_is_named_with_the_reason(tmp_path, body, reason):
    path = written(tmp_path, body)
    trial = SimpleNamespace(host=HostSpec("program", roce=program(path)))
    with pytest.raises(InputError, match=reason):
        check_policies([trial])
