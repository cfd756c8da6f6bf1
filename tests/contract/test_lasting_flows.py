"""Flows that last as long as their trial, and samples of flows, on every backend with RoCE NICs."""

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.routing import base_rtt_ns
from orchestration.analysis.stamp import stamp
from orchestration.backends.emulated.engines import needs_kernel
from orchestration.core.engines import PROCESS
from orchestration.core.ports import TrialRun
from orchestration.core.records import DONE, LONG_LIVED
from orchestration.core.roce import HEADER_BYTES, RoceSpec
from orchestration.core.signals import names
from orchestration.core.trial import CLOSLOOP, HostSpec, TrialSpec, TunerSpec
from traffic.patterns.concurrent import ConcurrentSpec
from traffic.schedule import make_schedule

US, MS = 1_000, 1_000_000
TESTBED = load_testbed("rlcc-7")
DCQCN = HostSpec("dcqcn", roce=RoceSpec(ack_every=1))
SWIFT = HostSpec("swift", roce=RoceSpec(control="swift", ack_every=1))
LONG = ConcurrentSpec(8, 0, 0, "h7", senders=4, spread_ns=50 * US)
SHORT = ConcurrentSpec(6, 64_000, MS, "h7", within_ns=MS)


@pytest.fixture
def run(roce_engine, tmp_path):
    def run_trial(*traffic, testbed=TESTBED, host=DCQCN):
        trial = TrialSpec(
            "c", "rlcc-7", roce_engine.backend, TunerSpec("secn2"), traffic, 1, 1, 3 * MS, 20 * MS,
            host=host, fabric=CLOSLOOP, flow_sample_period_ns=500 * US,
        )  # fmt: skip
        if roce_engine.engine == PROCESS and (reason := needs_kernel(trial, testbed)):
            pytest.skip(reason)
        schedule = make_schedule(trial, testbed)
        record = roce_engine.make().run(TrialRun(trial, testbed, schedule, tmp_path))
        return trial, schedule, record

    return run_trial


def test_flows_last_until_the_trials_end_and_no_longer(run):
    trial, schedule, record = run(LONG, SHORT)
    lasting = schedule.klass == 0
    assert (record.flows.status[lasting] == LONG_LIVED).all()
    assert (record.flows.status[~lasting] == DONE).all()
    # not a reading of the 20 ms that flows would have to finish
    assert record.ports.t_ns[-1] == trial.duration_ns
    found = stamp(trial, TESTBED, schedule, record)
    assert found.valid, found.reasons


def test_samples_of_flows_count_what_the_line_carried(run):
    # eight flows of 13 Gbit/s fill a line of 100 Gbit/s
    fixed = RoceSpec(control="fixed", ack_every=1, values=(("rate", 13_000),))
    _, schedule, record = run(LONG, host=HostSpec("fixed", roce=fixed))
    flows = record.samples["flow"]
    assert tuple(flows.values) == names("flow")
    assert flows.t_ns.tolist() == [step * 500 * US for step in range(7)]
    acked = np.diff(flows.acked_bytes, axis=0)
    assert (acked >= 0).all()
    # the receiver's line is busy once all have begun: payload in frames with their framing
    full = 1024 + HEADER_BYTES + TESTBED.framing_bytes
    busy = acked[1:].sum(axis=1) * 8 / (500 * US) / 100 * full / 1024
    assert busy == pytest.approx(1, abs=0.01)
    assert (np.diff(flows.rtt_sum_ns, axis=0)[1:] > 5_000 * np.diff(flows.rtts, axis=0)[1:]).all()
    assert (flows.resent_packets == 0).all()
    assert (flows.rate_bps[0] > 0).all()
    assert flows.acked_bytes.shape == (7, len(schedule))


def test_round_trips_of_flows_are_swifts_target(run):
    _, _, record = run(LONG, host=SWIFT)
    flows = record.samples["flow"]
    rtt_ns = np.diff(flows.rtt_sum_ns, axis=0)[1:] / np.diff(flows.rtts, axis=0)[1:]
    # Swift's target on a path of one switch: base_target + hop_scale, and what its window adds
    assert base_rtt_ns(TESTBED) == 5_000
    assert ((rtt_ns > 20_000) & (rtt_ns < 60_000)).all()


def test_rlccs_trees_do_what_their_network_does(run):
    """Fuhrer et al., HPSR 2023, table III: goodput within 1 %, latency within 5 %."""
    found = {}
    for control in ("rlcc", "rlcc-mlp"):
        # half a line of bytes in a round trip each: all of them at line rate fill no buffer
        host = HostSpec(control, roce=RoceSpec(control=control, ack_every=1, window_bytes=31_250))
        many = ConcurrentSpec(16, 0, 0, "h7", senders=6, spread_ns=50 * US)
        _, _, record = run(many, host=host)
        steady = record.samples["flow"]
        acked, rtt_ns, rtts = (
            float((column[-1] - column[3]).sum())
            for column in (steady.acked_bytes, steady.rtt_sum_ns, steady.rtts)
        )
        assert record.ports.dropped_packets[-1].sum() == 0
        found[control] = acked * 8 / (1_500 * US) / 100, rtt_ns / rtts
    trees, network = found["rlcc"], found["rlcc-mlp"]
    assert trees[0] == pytest.approx(network[0], rel=0.01)
    assert trees[1] == pytest.approx(network[1], rel=0.05)
    # at rest, by equation 2: 1.5 + 0.064 * 4 round trips of 5 us
    assert network[1] == pytest.approx(8_780, rel=0.1)
    assert network[0] > 0.9


def test_a_flow_whose_packet_is_lost_twice_goes_back_while_it_has_more_to_send(run, tmp_path):
    """A receiver asks once for what is lost: when that is lost again, only the timeout helps."""
    shallow = tmp_path / "shallow.yml"
    shallow.write_text(
        "kind: single-switch\nname: shallow\nmtu: 1500B\nbuffer: 60KB\nhosts: 7\n"
        "host_link: {rate: 100Gbps, delay: 1us}\n"
    )
    unheeding = HostSpec(
        "fixed", roce=RoceSpec(control="fixed", values=(("rate", 23_000),), timeout_ns=200 * US)
    )
    # 92 % of the line for the trial, and 138 % until the two bursts are over
    rest = ConcurrentSpec(4, 0, 0, "h7", senders=4)
    bursts = ConcurrentSpec(2, 1_000_000, MS // 2, "h7", within_ns=100 * US)
    _, schedule, record = run(rest, bursts, testbed=load_testbed(str(shallow)), host=unheeding)
    lasting = schedule.klass == 0
    acked = np.diff(record.samples["flow"].acked_bytes, axis=0)[:, lasting]
    assert record.ports.dropped_packets[-1].sum() > 100
    assert (acked[-1] > 0).all()
