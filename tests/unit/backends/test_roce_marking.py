"""Whether marks become CNPs: the probe before a campaign, on a rack of scripted agents."""

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.backends.hardware import marking_check
from orchestration.backends.hardware.linux_switch import LinuxSwitch
from orchestration.core.errors import NotReadyError
from orchestration.core.pattern import DriverSpec
from orchestration.core.status import DONE, FAILED
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.device.client import Clock
from traffic.drivers.perftest import Perftest
from traffic.drivers.programs import Outcome
from traffic.patterns.incast import IncastSpec

CHAIN = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled")
TESTBED = load_testbed("rlcc-7")


class Agent:
    """A device's agent. Each overload moves its NIC's counters, but for those that are `stuck`."""

    def __init__(self, lab, device):
        self.lab, self.device = lab, device
        self.counters = dict.fromkeys(CHAIN, 7)

    def post(self, op, **arguments):
        return op

    def result(self, op, timeout_s=0.0):
        if op == "nic.optional":
            return []
        assert op == "nic.counters"
        values = self.counters if self.lab.dcqcn else {"sent_pkts": 3}
        return {"hw": {"values": dict(values)}, "rdma": {"problem": "none"}}


class Lab:
    """A rack of one switch and RoCE hosts; `sent` has (sender, receiver) of every overload."""

    def __init__(self, roce):
        access = {
            device.name: Access(
                device.name,
                "",
                nic="roce" if device.name in roce else "plain",
                interfaces=tuple(port.name for port in TESTBED.ports_of[device.name]),
                rdma_devices=("mlx5_0",) * (device.name in roce),
            )
            for device in TESTBED.devices
        }
        self.rack = Rack("lab", TESTBED, access)
        self.agents = {device: Agent(self, device) for device in access}
        self.switches = [LinuxSwitch(self.rack, name) for name in TESTBED.switches]
        self.dcqcn, self.marks, self.fails, self.stuck = True, True, False, {}
        self.thresholds = [(10**6, 10**6, 1)] * len(TESTBED.queues)
        self.marked, self.sent, self.argv, self.guarded = 0, [], [], []

    def clocks(self):
        return dict.fromkeys(self.agents, Clock(0, 0))

    def ask(self, op, requests):
        if op == "program.missing":
            return {host: [] for host in requests}
        assert op == "nic.gids"
        addresses, ports = self.rack.addresses.nics, TESTBED.ports_of
        return {
            host: [["mlx5_0", 1, 3, addresses[port.index]] for port in ports[host]]
            for host in requests
        }

    def exchange(self, requests):
        ((device, (op, words)),) = requests.items()
        if op == "red.set":
            assert self.guarded == ["in"]
            for place, *values in words["changes"]:
                self.thresholds[place] = tuple(values)
        rows = [[0, 0, 0, self.marked, 0, *values] for values in self.thresholds]
        return {device: {"t_ns": 1, "took_ns": 1, "rows": rows}}

    def __enter__(self):
        self.guarded.append("in")

    def __exit__(self, *_):
        self.guarded.append("out")

    def tick(self):
        pass


class Programs:
    """Stands in for perftest: an overload of each receiver, or a failure."""

    def __init__(self, jobs, lab):
        self.jobs, self.lab = jobs, lab

    def connect(self, clocks):
        pass

    def start(self, t0_ns):
        lab = self.lab
        for job in self.jobs:
            lab.sent.append((job.flow.src, job.flow.dst))
            lab.argv += [launch.argv for launch in Perftest().launches(job.flow, job.options)]
        receivers = [job.flow.dst for job in self.jobs]
        assert all(receivers.count(name) == 2 for name in receivers)
        low = all(kmin <= TESTBED.mtu_bytes for kmin, _, _ in lab.thresholds)
        lab.marked += lab.marks and low
        for job in self.jobs:
            for host, moves in ((job.flow.dst, CHAIN[:2]), (job.flow.src, CHAIN[2:])):
                for name in moves:
                    if host not in lab.stuck.get(name, ()):
                        lab.agents[host].counters[name] += 5

    def all_done(self):
        return True

    def outcomes(self):
        status = FAILED if self.lab.fails else DONE
        detail = "perftest: Couldn't connect" if self.lab.fails else ""
        return {job.flow.number: Outcome(0, 1, -1, status, detail) for job in self.jobs}

    def stop(self):
        pass


@pytest.fixture
def make_lab(monkeypatch):
    monkeypatch.setattr(marking_check, "RackPrograms", Programs)
    monkeypatch.setattr(marking_check, "_SONIC_POLL_S", 0.0)
    return lambda count=5: Lab(TESTBED.hosts[:count])


def trial(**options):
    driver = DriverSpec("perftest", tuple(options.items()))
    incast = IncastSpec(4, 10_000, 1_000_000, 0, 10_000_000, driver=driver)
    tuner = TunerSpec("static", {"kmin": 1000, "kmax": 2000})
    return TrialSpec("c", "rlcc-7", "hardware", tuner, (incast,), 1, 1, 10**7, 10**7)


def tries(lab, *trials):
    marking_check.check_marking(lab.rack, lab, lab, lab.switches, trials or [trial()])


def test_marks_that_become_cnps_are_proved_at_every_nic(make_lab):
    lab = make_lab()
    tries(lab, trial(verb="send", mtu=1024), trial(verb="read", mtu=1024))
    hosts = TESTBED.hosts[:5]
    assert {src for src, _ in lab.sent} == {dst for _, dst in lab.sent} == set(hosts)
    assert len(lab.sent) == 2 * len(hosts)
    assert lab.guarded == ["in", "out"]
    # what decides on marks is the campaign's, the rest is an overload
    command = " ".join(lab.argv[0])
    assert "--gid-index 3 --tclass 106 --mtu 1024 --duration 1 " in command
    assert command.startswith("ib_write_bw")


@pytest.mark.parametrize("name", CHAIN)
def test_a_counter_that_does_not_move_refuses_the_campaign(make_lab, name):
    lab = make_lab()
    lab.stuck[name] = {"h2"}
    with pytest.raises(NotReadyError, match=rf"{name} did not grow at h2:eth0 while") as caught:
        tries(lab)
    assert caught.value.remedy
    assert lab.guarded == ["in", "out"]


def test_the_first_broken_link_of_the_chain_is_told(make_lab):
    lab = make_lab()
    lab.stuck = {name: set(TESTBED.hosts) for name in CHAIN[1:]}
    with pytest.raises(NotReadyError, match="np_cnp_sent did not grow") as caught:
        tries(lab)
    assert "roce_np/enable" in caught.value.remedy


def test_a_queue_that_does_not_mark_is_the_switches_fault(make_lab):
    lab = make_lab()
    lab.marks = False
    with pytest.raises(NotReadyError, match="the switches marked no packet"):
        tries(lab)


def test_perftest_that_fails_is_told(make_lab):
    lab = make_lab()
    lab.fails = True
    with pytest.raises(NotReadyError, match=r"RoCE from h2 to h1 does not work: .*connect"):
        tries(lab)
    assert lab.guarded == ["in", "out"]


def test_nothing_is_tried_without_dcqcn_or_overload(make_lab):
    lab = make_lab()
    lab.dcqcn = False
    tries(lab)
    tries(few := make_lab(2))
    assert lab.sent == few.sent == lab.guarded == few.guarded == []


def test_each_way_of_marking_is_tried(make_lab):
    lab = make_lab(3)
    tries(lab, trial(), trial(traffic_class=42), trial(traffic_class=42, qps=8))
    assert len(lab.sent) == 2 * 2 * 3
    classes = {argv[argv.index("--tclass") + 1] for argv in lab.argv}
    assert classes == {"106", "42"}


@pytest.mark.parametrize("count", range(3, 12))
def test_rounds_have_every_host_receive_once_from_two_that_send_nowhere_else(count):
    hosts = [f"h{n}" for n in range(count)]
    found = marking_check.receiver_rounds(hosts)
    assert sorted(r for turn in found for r, _ in turn) == sorted(hosts)
    assert {s for turn in found for _, pair in turn for s in pair} == set(hosts)
    for turn in found:
        senders = [sender for _, pair in turn for sender in pair]
        assert len(set(senders)) == len(senders)
        assert all(receiver not in pair for receiver, pair in turn)
