"""Programs through agents over real SSH: real iperf3 and fio pairs, frames, ends, what is left."""

import dataclasses
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.core.errors import InputError
from orchestration.core.pattern import DriverSpec
from orchestration.core.records import FlowRecords
from orchestration.core.status import DONE, FAILED, UNFINISHED
from orchestration.core.topology import TrafficClass
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.device.client import AgentClient, Fleet
from orchestration.device.errors import DeviceError
from traffic.drivers.connections import Gid
from traffic.drivers.programs import Flow, Launch, Outcome, load_driver
from traffic.drivers.rack_programs import (
    SERVICES,
    Job,
    RackPrograms,
    check_drivers,
    check_programs,
    jobs_of,
    remarks,
    with_outcomes,
)
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule

pytestmark = pytest.mark.ssh
MS_NS = 1_000_000
needs_iperf3 = pytest.mark.skipif(not shutil.which("iperf3"), reason="no iperf3")
needs_fio = pytest.mark.skipif(not shutil.which("fio"), reason="no fio")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="packet sockets need root")


@pytest.fixture(scope="module")
def fleet(loopback):
    agents = {}
    for device in ("h1", "h2"):
        access = Access(device, "127.0.0.1", loopback.port, loopback.user, str(loopback.key_file))
        agents[device] = AgentClient(access, str(loopback.known_hosts), SERVICES)
    with Fleet(agents) as made:
        yield made


@pytest.fixture
def agent(fleet):
    return fleet.agents["h1"]


def flow(number=0, size_bytes=2_000_000, start_ns=0, port=0):
    return Flow(
        number, start_ns, "h1", "h2", size_bytes, "127.0.0.1", "127.0.0.1", port or 21_400 + number
    )


def run(fleet, jobs, patience_s=60.0):
    """Return the outcomes of the jobs, as a trial gets them."""
    programs = RackPrograms(jobs, fleet)
    programs.connect(fleet.clocks())
    programs.start(time.monotonic_ns() + 100 * MS_NS)
    deadline = time.monotonic() + patience_s
    while not programs.all_done() and time.monotonic() < deadline:
        time.sleep(0.02)
    return programs.outcomes()


def wait_for_end(agent, name):
    deadline = time.monotonic() + 60
    while not any(event.get("program") == name for event in agent.events):
        assert time.monotonic() < deadline, f"{name} does not end"
        agent.poll()
        time.sleep(0.01)
    agent.events.clear()
    return agent.call("program.collect", program=name)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until_gone(pid):
    deadline = time.monotonic() + 60
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


@needs_iperf3
def test_iperf3_pairs_give_flow_outcomes(fleet):
    jobs = [Job(load_driver("iperf3"), {}, flow(n, start_ns=n * 50 * MS_NS)) for n in range(2)]
    outcomes = run(fleet, jobs)
    for job in jobs:
        outcome = outcomes[job.flow.number]
        assert outcome.status == DONE, outcome.detail
        assert job.flow.start_ns <= outcome.sent_ns < outcome.end_ns
        assert outcome.retransmits >= 0


@needs_iperf3
def test_udp_by_iperf3_has_no_retransmissions_to_tell(fleet):
    job = Job(load_driver("iperf3"), {"protocol": "udp", "rate": 100_000_000}, flow(2, 200_000))
    outcome = run(fleet, [job])[2]
    assert outcome.status == DONE, outcome.detail
    assert outcome.retransmits == -1


@needs_fio
@pytest.mark.parametrize("size", [1000, 100_001, 4 << 20])
def test_fio_pairs_give_flow_outcomes(fleet, size):
    outcome = run(fleet, [Job(load_driver("fio"), {}, flow(3, size))])[3]
    assert outcome.status == DONE, outcome.detail
    assert 0 <= outcome.sent_ns < outcome.end_ns


@needs_root
@pytest.mark.parametrize("shape", ["udp", "roce"])
@pytest.mark.parametrize("ecn", ["ect0", "none"])
def test_prebuilt_frames_are_sent_together_and_counted_where_they_arrive(fleet, shape, ecn):
    options = {"shape": shape, "ecn": ecn, "payload": 1000}
    jobs = [Job(load_driver("scapy"), options, flow(n, 100_500)) for n in range(4, 7)]
    outcomes = run(fleet, jobs)
    for number, outcome in outcomes.items():
        assert outcome.status == DONE, (number, outcome.detail)
        assert outcome.detail == "101 of 101 frames arrived, 0 marked CE"
        assert 0 <= outcome.sent_ns <= outcome.end_ns


@needs_root
def test_marks_are_counted(fleet, monkeypatch):
    """No queue marks on loopback: the frames are built as if one had."""
    monkeypatch.setattr("traffic.drivers.scapy_incast._ECN", {"ect0": 3})
    outcome = run(fleet, [Job(load_driver("scapy"), {}, flow(7, 10 * 1024))])[7]
    assert outcome.detail == "10 of 10 frames arrived, 10 marked CE"


@needs_root
def test_a_flow_whose_last_frame_is_lost_is_not_done(fleet, monkeypatch):
    scapy = load_driver("scapy")
    server, client = scapy.launches(flow(8, 10 * 1024), {})
    lost = Launch(**{**vars(client), "extra": {**client.extra, "last": client.extra["frames"][0]}})
    monkeypatch.setattr(scapy, "launches", lambda *_: (server, lost))
    outcome = run(fleet, [Job(scapy, {}, flow(8, 10 * 1024))])[8]
    assert (outcome.status, outcome.end_ns) == (UNFINISHED, -1)
    assert outcome.detail == "10 of 10 frames arrived, 0 marked CE"


@needs_iperf3
def test_a_client_whose_server_is_gone_fails_and_says_why(fleet, monkeypatch):
    iperf3 = load_driver("iperf3")
    server, client = iperf3.launches(flow(9), {})
    elsewhere = tuple("1" if word == "21409" else word for word in client.argv)
    wrong = Launch(**{**vars(client), "argv": elsewhere})
    monkeypatch.setattr(iperf3, "launches", lambda *_: (server, wrong))
    outcome = run(fleet, [Job(iperf3, {}, flow(9))])[9]
    assert outcome.status == FAILED
    assert "Connection refused; nothing listens there" in outcome.detail


@needs_iperf3
def test_what_runs_at_the_end_of_a_trial_is_stopped_and_unfinished(fleet):
    job = Job(load_driver("iperf3"), {"rate": 1_000_000}, flow(10, 1 << 30))
    assert run(fleet, [job], patience_s=0.5)[10].status == UNFINISHED


@needs_iperf3
def test_a_port_that_is_taken_is_said_before_the_trial_starts(fleet):
    jobs = [Job(load_driver("iperf3"), {}, flow(11))]
    first, second = (RackPrograms(jobs, fleet) for _ in range(2))
    first.connect(fleet.clocks())
    with pytest.raises(DeviceError, match="h2: tcp port 21411, which a program needs, is in use"):
        second.connect(fleet.clocks())
    assert first.outcomes()[11].status == UNFINISHED


@needs_iperf3
def test_a_server_that_ends_at_once_is_said_before_the_trial_starts(fleet, monkeypatch):
    iperf3 = load_driver("iperf3")
    server, client = iperf3.launches(flow(12), {})
    wrong = Launch(**{**vars(server), "argv": ("iperf3", "--server", "--nonsense")})
    monkeypatch.setattr(iperf3, "launches", lambda *_: (wrong, client))
    programs = RackPrograms([Job(iperf3, {}, flow(12))], fleet)
    with pytest.raises(
        DeviceError, match="h2: a server ended before its client connected: iperf3: unr"
    ):
        programs.connect(fleet.clocks())


def test_a_program_that_is_not_there_is_named(fleet):
    with pytest.raises(DeviceError, match="h1: has no no-such-program") as caught:
        fleet.agents["h1"].call("program.start", program="x", argv=["no-such-program"])
    assert "install it" in str(caught.value)
    assert fleet.agents["h1"].call("program.missing", names=["sh", "no-such"]) == ["no-such"]


def test_a_program_gets_its_input_and_is_collected_once(agent):
    agent.call("program.start", program="cat", argv=["cat"], stdin="aGVsbG8=")
    report = wait_for_end(agent, "cat")
    assert (report["stdout"], report["stderr"], report["exit_code"]) == ("hello", "", 0)
    assert 0 < report["started_ns"] <= report["ended_ns"]
    with pytest.raises(DeviceError, match="there is no program 'cat'"):
        agent.call("program.collect", program="cat")


def test_a_start_is_not_before_its_time(agent):
    agent.call("program.start", program="true", argv=["true"], after_ns=30 * MS_NS)
    t0_ns = agent.call("clock")["monotonic_ns"] + 100 * MS_NS
    agent.call("program.go", t0_ns=t0_ns)
    assert wait_for_end(agent, "true")["started_ns"] >= t0_ns + 30 * MS_NS


def test_output_beyond_what_is_kept_is_said(agent):
    argv = ["head", "-c", str((4 << 20) + 5), "/dev/zero"]
    agent.call("program.start", program="much", argv=argv)
    report = wait_for_end(agent, "much")
    assert (len(report["stdout"]), report["cut_bytes"]) == (4 << 20, 5)


def test_a_program_that_takes_too_long_is_killed(agent):
    agent.call("program.start", program="slow", argv=["sleep", "60"], limit_s=0.2)
    report = wait_for_end(agent, "slow")
    assert (report["exit_code"], report["timed_out"]) == (-signal.SIGKILL, True)


def test_a_program_that_does_not_listen_to_the_polite_signal_is_killed(agent, tmp_path):
    script = f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    agent.call("program.start", program="deaf", argv=["sh", "-c", script])
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    agent.call("program.stop", program="deaf")
    report = wait_for_end(agent, "deaf")
    assert (report["exit_code"], report["stopped"]) == (-signal.SIGKILL, True)


def test_what_a_program_leaves_running_is_ended_with_it(agent):
    agent.call("program.start", program="sh", argv=["sh", "-c", "sleep 300 & echo $!"])
    wait_until_gone(int(wait_for_end(agent, "sh")["stdout"]))


def test_one_whose_time_has_not_come_can_be_stopped(agent):
    agent.call("program.start", program="later", argv=["true"], after_ns=0)
    agent.call("program.stop")
    assert wait_for_end(agent, "later")["started_ns"] == -1
    agent.call("program.go", t0_ns=0)


def test_programs_that_end_at_the_same_moment_are_all_told_of(agent):
    names = [str(number) for number in range(100)]
    posted = [agent.post("program.start", program=name, argv=["true"]) for name in names]
    for number in posted:
        agent.result(number)
    left, deadline = set(names), time.monotonic() + 30
    while left:
        assert time.monotonic() < deadline, f"{sorted(left)} do not end"
        agent.poll()
        left -= {event.get("program") for event in agent.events}
        time.sleep(0.01)
    agent.events.clear()
    assert {agent.call("program.collect", program=name)["exit_code"] for name in names} == {0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_program_outlives_its_agent(loopback, number, tmp_path):
    access = Access("h3", "127.0.0.1", loopback.port, loopback.user, str(loopback.key_file))
    client = AgentClient(access, str(loopback.known_hosts), SERVICES)
    note = tmp_path / "pid"
    script = f"echo $$ > {note}; exec sleep 300"
    client.call("program.start", program="long", argv=["sh", "-c", script])
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(client.about["pid"], number)
    wait_until_gone(int(note.read_text()))
    client.close()


def trial_with(*drivers):
    """A trial on a rack of graphcc in which each driver sends one flow from h1 to h2."""
    testbed = load_testbed("graphcc")
    access = {
        device.name: Access(
            device.name,
            "127.0.0.1",
            interfaces=tuple(port.name for port in testbed.ports_of[device.name]),
            rdma_devices=(f"rdma_{device.name}",) * (device.kind == "host"),
        )
        for device in testbed.devices
    }
    traffic = tuple(
        SingleFlowSpec(testbed.hosts[0], testbed.hosts[1], 10_000, n * MS_NS, driver=spec)
        for n, spec in enumerate(drivers)
    )
    tuner = TunerSpec("static", {"kmin": 1000, "kmax": 2000})
    trial = TrialSpec("c", "graphcc", "hardware", tuner, traffic, 1, 1, 20 * MS_NS, 20 * MS_NS)
    return trial, Rack("r", testbed, access)


def test_jobs_are_the_flows_that_programs_send():
    sends = DriverSpec("perftest", (("verb", "send"), ("size", 1000)))
    trial, rack = trial_with(DriverSpec("iperf3"), DriverSpec(), sends)
    gids = {
        host: [
            Gid("other", 1, 1, "198.18.1.1"),
            Gid(f"rdma_{host}", 1, 2, "10.0.0.7"),
            Gid(f"rdma_{host}", 2, 5 + n, f"198.18.1.{n + 1}"),
        ]
        for n, host in enumerate(rack.testbed.hosts[:2])
    }
    jobs = jobs_of(trial, rack, make_schedule(trial, rack.testbed), gids)
    assert [(job.driver.name, job.flow.number, job.flow.port) for job in jobs] == [
        ("iperf3", 0, 20_000),
        ("perftest", 2, 20_001),
    ]
    ends = rack.testbed.hosts[:2]
    flow = jobs[1].flow
    assert (flow.src, flow.dst) == ends
    assert (flow.src_rdma_device, flow.dst_rdma_device) == tuple(f"rdma_{end}" for end in ends)
    assert (flow.src_gid_index, flow.dst_gid_index) == (5, 6)
    assert (flow.src_rdma_port, flow.dst_rdma_port) == (2, 2)
    assert flow.traffic_class == 26 << 2 | 0b10
    assert (flow.start_ns, flow.size_bytes) == (2 * MS_NS, 10_000)
    assert flow.src_address != flow.dst_address
    assert jobs[1].options == {"verb": "send", "size": 1000}


def test_rdma_from_an_address_without_a_gid_is_refused_with_what_there_is():
    trial, rack = trial_with(DriverSpec("perftest"))
    schedule = make_schedule(trial, rack.testbed)
    gids = {"h1": [Gid("rdma_h1", 1, 3, "10.0.0.7"), Gid("other", 1, 3, "198.18.1.1")]}
    with pytest.raises(DeviceError) as caught:
        jobs_of(trial, rack, schedule, gids)
    assert caught.value.what == (
        "RDMA device rdma_h1 has no RoCE v2 GID for the address 198.18.1.1 "
        "(found: 10.0.0.7 at rdma_h1, 198.18.1.1 at other)"
    )
    assert "rdma_device" in caught.value.remedy
    chosen = trial_with(DriverSpec("perftest", (("gid_index", 4),)))[0]
    (job,) = jobs_of(chosen, rack, schedule, {})
    assert job.flow.src_gid_index == 4


def test_rdma_of_a_traffic_class_is_of_its_tos_and_may_be_marked():
    trial, rack = trial_with(DriverSpec("perftest", (("gid_index", 4),)))
    classes = (TrafficClass("tcp", 30), TrafficClass("rdma", 70))
    rack = dataclasses.replace(rack, testbed=dataclasses.replace(rack.testbed, classes=classes))
    for name, traffic_class in (("tcp", 0b10), ("rdma", 0x08 | 0b10)):
        flow = dataclasses.replace(trial.traffic[0], queue_class=name)
        of_class = dataclasses.replace(trial, traffic=(flow,))
        (job,) = jobs_of(of_class, rack, make_schedule(of_class, rack.testbed))
        assert job.flow.traffic_class == traffic_class


def test_a_program_that_cannot_mark_is_refused_in_another_class_than_the_first():
    trial, rack = trial_with(DriverSpec("fio"))
    testbed = dataclasses.replace(
        rack.testbed, classes=(TrafficClass("tcp", 30), TrafficClass("rdma", 70))
    )
    of = {
        name: dataclasses.replace(
            trial, traffic=(dataclasses.replace(trial.traffic[0], queue_class=name),)
        )
        for name in ("tcp", "rdma")
    }
    check_drivers(of["tcp"], testbed)
    with pytest.raises(InputError, match="fio cannot mark its packets as those of rdma"):
        check_drivers(of["rdma"], testbed)


def test_wrong_options_are_all_told_with_where_they_are():
    trial, _ = trial_with(
        DriverSpec("iperf3", (("protocol", "udp"),)),
        DriverSpec(),
        DriverSpec("fio", (("block", 0), ("speed", 3))),
    )
    with pytest.raises(InputError) as caught:
        check_drivers(trial)
    said = str(caught.value)
    assert "traffic[0].driver: UDP needs a rate\n  -> give one, like rate: 1Gbps" in said
    assert said.count("traffic[2].driver: ") == 2


def test_hosts_without_a_program_are_named(fleet):
    trial, _ = trial_with(DriverSpec("iperf3"))
    check_programs(fleet, ["h1", "h2"], trial_with(DriverSpec())[0])
    if shutil.which("iperf3"):
        check_programs(fleet, ["h1", "h2"], trial)
    for agent in fleet.agents.values():
        assert agent.call("program.missing", names=["no-such", "sh"]) == ["no-such"]


def test_outcomes_are_put_among_the_flows_that_sockets_sent():
    columns = {name: np.array([1, 2, 3]) for name in ("sent_ns", "end_ns", "retransmits", "status")}
    records = with_outcomes(FlowRecords(**columns), {1: Outcome(7, 8, -1, DONE)})
    assert records.sent_ns.tolist() == [1, 7, 3]
    assert records.end_ns.tolist() == [1, 8, 3]
    assert records.retransmits.tolist() == [1, -1, 3]
    assert records.status.tolist() == [1, DONE, 3]


def test_remarks_name_flows_once():
    same = Outcome(0, 1, 0, DONE, "late")
    outcomes = dict.fromkeys(range(5), same) | {9: Outcome(0, 1, 0, DONE)}
    assert remarks(outcomes) == ["late (5 flows: 0, 1, 2, …)"]
