"""Whether marks become CNPs: the probe before a campaign, on a rack of scripted agents."""

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.backends.hardware import marking_check
from orchestration.backends.hardware.linux_switch import LinuxSwitch
from orchestration.backends.hardware.monitors import NicMonitor
from orchestration.core.errors import NotReadyError
from orchestration.core.pattern import DriverSpec
from orchestration.core.status import DONE, FAILED
from orchestration.core.trial import TrialSpec, TunerSpec
from orchestration.device.client import Clock
from traffic.drivers.perftest import Perftest
from traffic.drivers.programs import Outcome
from traffic.patterns.incast import IncastSpec

# As the drivers' sources call CE packets, CNPs sent and CNPs received.
DRIVERS = {
    "mlx5_core": ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"),
    "bnxt_en": ("rx_ecn_marked_pkts", "tx_cnp_pkts", "rx_cnp_pkts"),
    "ice": ("RxECNMrkd", "cnpSent", "cnpHandled"),
    "ionic": ("rx_rdma_ecn_pkts", "tx_rdma_cnp_pkts", "rx_rdma_cnp_pkts"),
}
CHAIN = DRIVERS["mlx5_core"]
# Soft-RoCE's (drivers/infiniband/sw/rxe/rxe_hw_counters.c).
SOFT_ROCE = ("sent_pkts", "rcvd_pkts", "duplicate_request")
TESTBED = load_testbed("rlcc-7")


class Agent:
    """A device's agent. Each overload moves its NIC's counters, but for those that are `stuck`."""

    def __init__(self, lab, device):
        self.lab, self.device = lab, device
        self.driver, self.counters = "", {}
        self.be("mlx5_core", CHAIN)

    def be(self, driver, names):
        """Have a NIC of this driver, whose counters have these names."""
        self.driver, self.counters = driver, dict.fromkeys(names, 7)
        self.chain = names

    def post(self, op, **arguments):
        return op

    def result(self, op, timeout_s=0.0):
        if op == "nic.optional":
            return []
        if op == "nic.driver":
            return self.driver
        assert op == "nic.counters"
        return {"hw": {"values": dict(self.counters)}, "rdma": {"problem": "none"}}


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
        self.marks, self.fails, self.stuck = True, False, {}
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
            assert self.guarded[-1] == "in"
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
            for host, moves in ((job.flow.dst, (0, 1)), (job.flow.src, (2,))):
                nic = lab.agents[host]
                for name in (nic.chain[move] for move in moves):
                    if host not in lab.stuck.get(name, ()):
                        nic.counters[name] += 5

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


def untested(lab):
    """Return what the stamp of a trial says about NICs that were not tried."""
    nics = NicMonitor(lab.rack, lab)
    nics.start()
    nics.finish()
    found = nics.untested_findings()
    assert {(one["code"], one["severity"]) for one in found} <= {("marks-untested", "warning")}
    return [one["text"] for one in found]


@pytest.mark.parametrize("driver", DRIVERS)
def test_marks_are_tried_under_the_names_of_each_driver(make_lab, driver):
    lab = make_lab(3)
    for agent in lab.agents.values():
        agent.be(driver, DRIVERS[driver])
    tries(lab)
    assert len(lab.sent) == 6
    assert untested(lab) == []
    lab.stuck = {DRIVERS[driver][1]: {"h3"}}
    with pytest.raises(NotReadyError, match=rf"{DRIVERS[driver][1]} did not grow at h3:eth0 while"):
        tries(lab)


def test_a_rack_of_several_drivers_is_tried_and_each_is_named(make_lab):
    lab = make_lab(3)
    lab.agents["h2"].be("ice", DRIVERS["ice"][1:])
    lab.agents["h2"].chain = DRIVERS["ice"][1:] + DRIVERS["ice"][1:2]
    nics = NicMonitor(lab.rack, lab)
    nics.start()
    tries(lab)
    nics.finish()
    # each host is a receiver once and a sender twice; the driver of h2 counts no CE packets
    facts = nics.congestion_facts()
    assert facts["h1:eth0"]["ce_packets"] == facts["h1:eth0"]["cnps_sent"] > 0
    assert facts["h2:eth0"]["ce_packets"] is None
    assert facts["h2:eth0"]["cnps_received"] > 0
    lab.stuck = {"np_cnp_sent": {"h1"}, "cnpSent": {"h2"}}
    with pytest.raises(NotReadyError) as caught:
        tries(lab)
    assert "np_cnp_sent did not grow at h1:eth0, and cnpSent did not grow at h2:eth0 while" in str(
        caught.value
    )


def test_what_counts_no_cnps_is_not_tried_and_the_stamp_says_so(make_lab):
    lab = make_lab()
    for agent in lab.agents.values():
        agent.be("rdma_rxe", SOFT_ROCE)
    tries(lab)
    assert lab.sent == lab.guarded == []
    (text,) = untested(lab)
    assert text == (
        "nobody knows whether marks slow down h1:eth0, h2:eth0, h3:eth0, h4:eth0 and 1 more: "
        "driver rdma_rxe has no counter of CNPs sent or CNPs received. Compare the rates of two "
        "senders to one receiver by hand, or use a NIC and driver that count them"
    )
    # others beside it are tried
    mixed = make_lab(4)
    mixed.agents["h1"].be("", (*DRIVERS["ice"][:2], "cnpIgnored"))
    tries(mixed)
    assert mixed.sent
    (text,) = untested(mixed)
    assert "slow down h1:eth0: its driver has no counter of CNPs received." in text


def test_two_hosts_cannot_overload_a_third(make_lab):
    tries(few := make_lab(2))
    assert few.sent == few.guarded == []
    (text,) = untested(few)
    assert "with 2 RoCE hosts no port gets more than it can send" in text


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
