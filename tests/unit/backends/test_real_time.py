"""Emulated campaigns in real time: what differs, what is refused, and before anything is made."""

import dataclasses
import json
import os
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from collectors.readers.tc import PlainReader, ReaderError
from inventory.files import load_testbed
from orchestration.agent.linux import qdiscs
from orchestration.analysis.counters import check_rates
from orchestration.backends.common.machine_monitor import SHAPERS_LATE_NS
from orchestration.backends.emulated import forwarding, host_kernel, real_time
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.backends.emulated.fabric import plan_fabric
from orchestration.backends.emulated.launcher import init_script
from orchestration.backends.emulated.real_time import (
    check_host_kernel,
    real_time_facts,
    real_time_findings,
)
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.plan import make_plan
from orchestration.cli.run import with_chosen_scale
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.records import Samples
from orchestration.core.trial import LINUX, FaultSpec, HostSpec, TrialSpec
from orchestration.environment.episode import EpisodeSource
from orchestration.run.launcher import default_jobs

SEVEN = load_testbed("rlcc-7")
BARE = ("red", "fq", "netem", "ets", "matchall", "dctcp", "cubic")
TEXT = """
campaign: test
testbed: rlcc-7
host: {congestion_control: reno}
tuners: [secn1]
traffic:
  - {kind: flow, src: h1, dst: h2, size: 1MB}
duration: 3s
drain: 1s
repeats: 2
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "c.yml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def kernel(monkeypatch):
    """Say what this machine's kernel lacks, as root."""

    def lacks(*names, code=0, said=""):
        done = subprocess.CompletedProcess([], code, json.dumps(names), said)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        # only here: a compiler that another module runs is a real one
        monkeypatch.setattr(host_kernel, "subprocess", SimpleNamespace(run=lambda *_, **__: done))

    return lacks


def check(trials, testbed=SEVEN, jobs=1):
    EmulatedBackend().check(testbed, jobs, trials)


def test_the_clock_is_part_of_a_trial_and_of_its_name(file):
    virtual = load_campaign(file).trials
    real = load_campaign(file, clock="real").trials
    assert "clock" not in virtual[0].to_json()
    assert real[0].to_json()["clock"] == "real"
    assert {one.id for one in virtual}.isdisjoint(one.id for one in real)
    assert TrialSpec.from_json(real[0].to_json()) == real[0]
    # by default the fabric that the machine can be
    assert virtual[0].fabric.kind == "closloop"
    assert real[0].fabric == LINUX


def test_the_command_line_is_told_what_a_clock_can_be(file):
    with pytest.raises(InputError, match="--clock: no clock 'wall'"):
        load_campaign(file, clock="wall")
    with pytest.raises(InputError, match="the fluid backend has no `clock: real`"):
        load_campaign(file, backend="fluid", clock="real")


def test_trials_in_real_time_take_turns_for_as_long_as_they_last(file, tmp_path):
    campaign = load_campaign(file, clock="real")
    assert campaign.runs_one_at_a_time
    assert default_jobs(campaign, EmulatedBackend()) == 1
    made = make_plan(campaign, 1, tmp_path)
    assert all(3.0 < planned.wall_s < 5.0 for planned in made.trials)
    # what ran in virtual time says nothing of them
    for trial in load_campaign(file).trials:
        folder = tmp_path / "c" / trial.id
        folder.mkdir(parents=True)
        about = {"spec": trial.to_json(), "facts": {"wall_s": 500.0}}
        (folder / "trial.json").write_text(json.dumps(about))
    assert make_plan(campaign, 1, tmp_path) == made
    with pytest.raises(NotReadyError, match="run one at a time"):
        check(campaign.trials, jobs=2)


def test_it_takes_root(file, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotReadyError, match=r"a trial in real time .* takes root") as refused:
        check(load_campaign(file, clock="real").trials)
    assert refused.value.exit_code == 3
    assert "sudo" in refused.value.remedy


def test_what_it_cannot_do_without_is_named(file, kernel):
    trials = load_campaign(file, clock="real").trials
    kernel("veth", "tbf")
    with pytest.raises(NotReadyError, match="lacks veth, tbf"):
        check(trials)
    kernel(code=1, said="unshare: unshare failed: Operation not permitted")
    with pytest.raises(NotReadyError, match=r"allow namespaces for a trial .*not permitted"):
        check(trials)


def test_a_congestion_control_that_the_kernel_lacks_is_refused(file, kernel, monkeypatch):
    kernel(*BARE)
    monkeypatch.setattr(real_time, "kernel_release", lambda: (6, 3))
    (trial, _) = load_campaign(file, clock="real").trials
    lone = dataclasses.replace(trial.traffic[0], congestion_control="cubic")
    for wrong, name in (
        (dataclasses.replace(trial, host=HostSpec("dctcp")), "dctcp"),
        (dataclasses.replace(trial, traffic=(lone,)), "cubic"),
    ):
        with pytest.raises(NotReadyError, match=f"has no {name}") as refused:
            check([wrong])
        assert "reno" in refused.value.remedy
        assert f"tcp_{name}" in refused.value.remedy
    assert check_host_kernel(SEVEN, 1, [trial]) == BARE


def test_classes_and_faults_take_parts_of_the_kernel(file, kernel):
    kernel("red", "ets", "matchall")
    (trial, _) = load_campaign(file, clock="real").trials
    classes = load_testbed("acc-fig8")
    with pytest.raises(NotReadyError, match="traffic classes need ets, red"):
        check([trial], classes)
    faulty = dataclasses.replace(trial, faults=(FaultSpec(1, None, 1, ("h1-leaf1",)),))
    with pytest.raises(NotReadyError, match="faults need matchall") as refused:
        check([faulty])
    assert "modprobe cls_matchall" in refused.value.remedy


def kinds(requests):
    """Return the kinds of qdiscs that are added, in order."""
    names = ("netem", "tbf", "red", "fq", "bfifo")
    added = [r for r in requests if struct.unpack_from("=H", r, 4)[0] == qdiscs.RTM_NEWQDISC]
    return [next(n for n in names if n.encode() + b"\0" in request) for request in added]


def test_a_kernel_with_less_has_a_fabric_with_less():
    def devices(lacks):
        plan = plan_fabric(SEVEN, HostSpec("reno"), 7, LINUX, lacks, SHAPERS_LATE_NS)
        by_name = {item.name: item for item in plan.namespaces}
        return by_name["h1"], by_name[SEVEN.switches[0]], plan.facts

    host, switch, facts = devices(())
    assert kinds(host.requests) == ["tbf", "fq"]
    assert kinds(switch.requests) == ["netem", "tbf", "red"] * 7
    assert "net/ipv4/tcp_ecn" not in host.sysctls
    host, switch, facts = devices(BARE)
    assert kinds(host.requests) == ["tbf", "bfifo"]
    assert kinds(switch.requests) == ["tbf", "bfifo"] * 7
    assert host.sysctls["net/ipv4/tcp_ecn"] == "1"
    assert facts["qdiscs"]["switch_to_host"] == "tbf > bfifo, marked by a BPF program"


def test_shapers_may_make_up_for_late_timers_and_the_stamp_knows():
    rate = SEVEN.switch_ports[0].rate_bps
    frame = SEVEN.mtu_bytes + 14 + SEVEN.framing_bytes
    count = len(SEVEN.queues)

    def over(bytes_beyond, late_ns):
        ns = 10_000_000
        sent = np.zeros((2, count), dtype=np.int64)
        sent[1, 0] = rate * ns // 8_000_000_000 + bytes_beyond
        none = np.zeros_like(sent)
        values = {"tx_bytes": sent} | dict.fromkeys(
            ("qlen_bytes", "tx_packets", "marked_packets", "dropped_packets"), none
        )
        samples = Samples(np.array([0, ns], dtype=np.int64), values)
        found = check_rates(SEVEN, samples, faults=False, late_ns=late_ns)
        return [reason.code for reason in found]

    within = rate * 10_000_000 // 800_000_000_000 + 2 * frame
    more = rate * SHAPERS_LATE_NS // 8_000_000_000
    assert over(within, 0) == []
    assert over(within + more, 0) == ["link-over-rate"]
    assert over(within + more, SHAPERS_LATE_NS) == []
    assert over(within + 2 * more, SHAPERS_LATE_NS) == ["link-over-rate"]


def test_the_record_says_who_marks_and_the_stamp_what_is_not_there():
    switch = SEVEN.switches[0]
    bare, whole = (
        real_time_facts(SEVEN, BARE, SHAPERS_LATE_NS),
        real_time_facts(SEVEN, (), SHAPERS_LATE_NS),
    )
    assert bare["clock"] == whole["clock"] == "real"
    assert bare["sources"][switch]["marked_packets"].startswith("a BPF program")
    assert bare["sources"][switch]["qlen_bytes"].startswith("the plain queue")
    assert set(whole["sources"][switch].values()) == {"Linux RED, at the moment of reading"}
    assert real_time_findings(SEVEN, ()) == []
    said = real_time_findings(SEVEN, BARE)
    assert {(one["code"], one["severity"]) for one in said} == {("kernel-lacks", "warning")}
    assert "no propagation delay" in said[0]["text"]


def test_the_first_process_knows_its_clock_by_its_argument(tmp_path):
    assert init_script(tmp_path).rstrip().endswith("emulated.guest")
    assert init_script(tmp_path, "real").rstrip().endswith("emulated.guest real")


def test_episodes_in_real_time_do_not_repeat_themselves(file):
    (trial, _) = load_campaign(file, clock="real").trials
    assert not EpisodeSource(trial, None, 1).deterministic
    fluid = EpisodeSource(trial, "fluid", 1)
    assert fluid.deterministic
    assert fluid.next().clock == ""


def attribute(kind, payload):
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


class OneDump:
    """Answers each request with a dump of plain queues: (ifindex, bytes, packets, backlog)."""

    def __init__(self, *queues):
        self.queues = queues

    def send(self, request):
        (self.number,) = struct.unpack_from("=I", request, 8)

    def recvmsg_into(self, buffers):
        data = b""
        for ifindex, sent, packets, backlog in self.queues:
            stats = attribute(1, struct.pack("=QII", sent, packets, 0))
            stats += attribute(3, struct.pack("=IIIII", 1, backlog, 4, 0, 0))
            body = struct.pack("=BxxxiIII", 0, ifindex, qdiscs.LEAF_HANDLE, 0x20001, 2)
            body += (
                attribute(1, b"bfifo\0") + attribute(2, struct.pack("=I", 9)) + attribute(7, stats)
            )
            data += struct.pack("=IHHII", 16 + len(body), 36, 2, self.number, 0) + body
        data += struct.pack("=IHHIIi", 20, 3, 2, self.number, 0, 0)
        buffers[0][: len(data)] = data
        return len(data), [], 0, None


def test_plain_queues_are_read_without_marks_which_are_the_programs():
    places = [(0, 6, qdiscs.LEAF_HANDLE), (0, 5, qdiscs.LEAF_HANDLE)]
    netlink = OneDump((5, 2**33 + 1, 7, 100), (6, 50, 8, 200))
    reading = PlainReader([netlink], places).read()
    assert {name: values.tolist() for name, values in reading.items()} == {
        "qlen_bytes": [200, 100],
        "tx_bytes": [50, 2**33 + 1],
        "tx_packets": [8, 7],
        "dropped_packets": [4, 4],
    }
    missing = PlainReader([netlink], [(0, 4, qdiscs.LEAF_HANDLE)])
    with pytest.raises(ReaderError, match="no bfifo queue"):
        missing.read()


def test_a_scale_is_asked_for_in_real_time_only(file, monkeypatch):
    (trial, _) = with_chosen_scale(load_campaign(file, clock="real"), "40").trials
    assert trial.scale == 40
    monkeypatch.setattr(forwarding, "stored_or_measured_hops_per_s", lambda: 1_000)
    (trial, _) = with_chosen_scale(load_campaign(file, clock="real"), "auto").trials
    assert trial.scale == forwarding.smallest_scale(SEVEN, 1_000)
    assert with_chosen_scale(load_campaign(file), None).trials[0].scale == 1
    for clock, backend, text, says in (
        ("real", "emulated", "0", "no scale"),
        ("virtual", "emulated", "40", "only trials in real time need a scale"),
        ("virtual", "hardware", "40", "the rack's scale"),
    ):
        with pytest.raises(InputError, match=says):
            with_chosen_scale(load_campaign(file, clock=clock, backend=backend), text)


def test_dctcp_is_a_program_where_the_kernel_has_none_and_takes_one(monkeypatch):
    monkeypatch.setattr(real_time, "kernel_release", lambda: (6, 4))
    monkeypatch.setattr(real_time, "VMLINUX", Path("/"))
    assert real_time.replaceable_dctcp(["dctcp", "red"]) == {"dctcp"}
    assert real_time.replaceable_dctcp(["red"]) == set()
    monkeypatch.setattr(real_time, "kernel_release", lambda: (6, 3))
    assert real_time.replaceable_dctcp(["dctcp"]) == set()
