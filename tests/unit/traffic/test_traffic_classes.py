"""Several traffic classes on a port: one queue each, in plans, tables, figures and checks."""

import dataclasses
import socket
import struct

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.agent.linux import qdiscs
from orchestration.agent.senders.connections import Service
from orchestration.analysis.counters import check_rates
from orchestration.analysis.report.queue_figures import timeline
from orchestration.analysis.trial_metrics import measure
from orchestration.backends.emulated.fabric import plan_fabric
from orchestration.backends.emulated.job import ifindex
from orchestration.core.errors import NotReadyError
from orchestration.core.knobs import ECN
from orchestration.core.pattern import PatternSpec
from orchestration.core.records import (
    ChangeRecords,
    FlowRecords,
    Samples,
    TrialRecord,
)
from orchestration.core.topology import TrafficClass
from orchestration.core.trial import HostSpec, TrialSpec, TunerSpec
from orchestration.results.reader import read_trial
from orchestration.results.stamp import Stamp
from orchestration.results.tables import read_table
from orchestration.results.writer import write_trial
from orchestration.run import backend_factory
from traffic.drivers.connections import services
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

MS = 1_000_000
TESTBED = load_testbed("acc-fig8")
QUEUES = len(TESTBED.queues)
RDMA, TCP = 0, 1  # the queues towards h1
TRAFFIC = (
    SingleFlowSpec("h2", "h1", 1000, 0, queue_class="rdma"),
    SingleFlowSpec("h3", "h1", 1000, 0, queue_class="tcp"),
    SingleFlowSpec("h4", "h1", 1000, 0, queue_class="tcp"),
    SingleFlowSpec("h5", "h1", 1000, 0),
)
TRIAL = TrialSpec("c", "acc-fig8", "emulated", TunerSpec("secn1"), TRAFFIC, 1, 1, MS, MS)


def attribute(kind, payload):
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def test_weights_are_quanta_of_at_least_a_frame_and_every_class_has_a_priority():
    nested = 0x8000
    request = qdiscs.ets(5, qdiscs.ETS_HANDLE, qdiscs.TBF_HANDLE + 1, [70, 30], 1514)
    quanta = b"".join(attribute(4, struct.pack("=I", quantum)) for quantum in (51 * 70, 51 * 30))
    bands = [0, 0, 1] + [0] * 13  # of priorities 0..15
    priomap = b"".join(attribute(6, bytes([band])) for band in bands)
    assert attribute(1, b"\2") + attribute(3 | nested, quanta) in request
    assert attribute(5 | nested, priomap) in request
    assert struct.unpack_from("=I", request)[0] == len(request)


def test_type_of_service_leaves_the_ecn_bits_alone():
    """include/net/route.h: the priority is looked up by bits 1 to 4; ECN has bits 0 and 1."""
    linux_priority = [0] * 4 + [2] * 4 + [6] * 4 + [4] * 4
    for tos, priority in zip(qdiscs.CLASS_TOS, qdiscs.CLASS_PRIORITIES, strict=True):
        assert tos & 3 == 0
        for ecn in range(4):
            assert linux_priority[((tos | ecn) & 0x1E) >> 1] == priority


def test_a_port_with_classes_has_a_scheduler_and_a_red_each():
    plan = plan_fabric(TESTBED, HostSpec(), 1)
    (switch,) = [item for item in plan.namespaces if item.name == "switch1"]
    index = ifindex(TESTBED.switch_ports[0])
    made = []
    for request in switch.requests:
        kind, place, handle, parent = (
            struct.unpack_from("=H", request, 4)[0],
            *struct.unpack_from("=iII", request, 20),
        )
        if kind == qdiscs.RTM_NEWQDISC and place == index:
            made.append((handle >> 16, parent))
    shaper, scheduler = qdiscs.TBF_HANDLE + 1, qdiscs.ETS_HANDLE
    assert made[-3:] == [(8, shaper), (3, scheduler + 1), (4, scheduler + 2)]
    queues = TESTBED.queues[:2]
    assert [qdiscs.leaf_handle(q.klass) >> 16 for q in queues] == [3, 4]
    assert [qdiscs.leaf_parent(q.klass, 2) for q in queues] == [scheduler + 1, scheduler + 2]
    assert qdiscs.leaf_parent(0, 1) == shaper
    assert plan.queue_locations[RDMA] == plan.queue_locations[TCP]


def test_each_pattern_is_sent_as_its_class():
    named = services(TESTBED, TRAFFIC)
    assert named[0] == Service(0, 0x00, "dctcp")
    assert named[1] == named[2] == Service(1, 0x08, "cubic")
    assert named[3] == named[0], "the first class is the default"
    plain, own = TRAFFIC[3], dataclasses.replace(TRAFFIC[3], congestion_control="reno")
    assert services(load_testbed("graphcc"), [plain]) == []
    assert services(load_testbed("graphcc"), [plain, own]) == [Service(), Service(1, 0, "reno")]
    assert services(TESTBED, [own]) == [Service(2, 0x00, "reno")]


def test_an_accepted_socket_inherits_its_listeners_class():
    service = Service(1, 0x08, "reno")
    with socket.socket() as listener, socket.socket() as sender:
        service.apply(listener)
        service.apply(sender)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sender.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            for end in (sender, accepted):
                assert end.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) & ~3 == 0x08
                name = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert name.rstrip(b"\0") == b"reno"


def test_the_schedule_names_classes_and_stays_pattern_by_pattern():
    schedule = make_schedule(TRIAL, TESTBED)
    assert schedule.classes == ("flow/rdma", "flow/tcp", "flow/tcp#2", "flow")
    assert schedule.klass.tolist() == [0, 1, 2, 3]


def test_a_class_that_the_testbed_has_not_is_refused():
    wrong = dataclasses.replace(TRAFFIC[0], queue_class="udp")
    assert "its classes are rdma, tcp" in wrong.wrong(TESTBED)
    assert "it has none" in PatternSpec.wrong(TRAFFIC[0], load_testbed("rlcc-7"))
    assert PatternSpec.wrong(TRAFFIC[0], TESTBED) == ""


def test_the_fake_backend_refuses_classes():
    with pytest.raises(NotReadyError, match="acc-fig8 has 2 traffic classes"):
        backend_factory.backend("fluid").check(TESTBED, 1)


def ports(rdma_share, total=1.0, samples=11):
    """Counters of h1's port: `total` of 100 Gbit/s in full frames, `rdma_share` of that RDMA."""
    t_ns = np.arange(1, samples + 1) * 100_000
    frames = np.zeros((samples, QUEUES), dtype=np.int64)
    per_reading = total * 100e9 * 1e-4 / 8 / (1514 + 24)
    frames[:, RDMA] = np.floor(rdma_share * per_reading * np.arange(samples))
    frames[:, TCP] = np.floor((1 - rdma_share) * per_reading * np.arange(samples))
    none = np.zeros_like(frames)
    return Samples.of("queue", t_ns, none, 1514 * frames, frames, none, none)


def record(port_records):
    flows = len(TRAFFIC)
    zero, changes = np.zeros(flows, dtype=np.int64), np.arange(QUEUES)
    none = np.zeros(QUEUES, dtype=np.int64)
    samples = np.zeros((1, len(TESTBED.hosts)), dtype=np.int64)
    settings = ECN.named(1_000 * changes, 2_000 * changes, none + 0.5)
    return TrialRecord(
        FlowRecords(zero, zero + 5_000, zero, zero),
        {"queue": port_records, "host": Samples.of("host", np.zeros(1, dtype=np.int64), samples)},
        {"ecn": ChangeRecords(none, none, none, changes, settings)},
        (),
    )


@pytest.fixture
def trial(tmp_path):
    def write(port_records):
        schedule = make_schedule(TRIAL, TESTBED)
        folder = tmp_path / "trial"
        done = Stamp(True, (), ())
        write_trial(folder, TRIAL, TESTBED, schedule, record(port_records), done, {})
        return read_trial(folder)

    return write


@pytest.mark.parametrize("rdma_share", [0.0, 0.7, 1.0])
def test_all_classes_together_may_take_the_rate_and_one_alone_too(rdma_share):
    assert list(check_rates(TESTBED, ports(rdma_share), faults=False)) == []


def test_two_classes_that_fit_one_by_one_but_not_together_are_over_the_rate():
    (reason,) = check_rates(TESTBED, ports(0.5, total=1.2), faults=False)
    assert reason.code == "link-over-rate"
    assert "switch1:eth0 carried 119.84Gbps" in reason.text


def test_a_backlog_of_one_class_makes_the_port_busy():
    slow = ports(0.5, total=0.5)
    slow.qlen_bytes[:, TCP] = 2_000_000
    (reason,) = check_rates(TESTBED, slow, faults=False)
    assert reason.code == "link-below-rate"
    busy = ports(0.9)
    busy.qlen_bytes[:, TCP] = 2_000_000
    assert list(check_rates(TESTBED, busy, faults=False)) == []


def test_utilisation_is_the_ports(trial):
    scalars = measure(trial(ports(0.7))).scalars
    assert scalars["utilisation_max"] == pytest.approx(1.0, abs=0.01)
    assert scalars["utilisation_hosts"] == pytest.approx(1 / 8, abs=0.01)


def test_tables_tell_classes_apart_by_their_number(trial):
    result = trial(ports(0.7))
    assert result.testbed.classes == (
        TrafficClass("rdma", 70, "dctcp"),
        TrafficClass("tcp", 30, "cubic"),
    )
    table = read_table(result.folder / "ports.parquet", "ports")
    assert table["queue"].reshape(QUEUES, -1)[:, 0].tolist() == [0, 1] * 8
    np.testing.assert_array_equal(result.ports.tx_bytes, ports(0.7).tx_bytes)
    line = timeline("secn1", result, TCP, 100)
    assert line.kmin_bytes.tolist() == [1_000 * TCP]
