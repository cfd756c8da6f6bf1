"""Load balancing on a virtual rack: its Linux switches choose paths, by their agents alone."""

import dataclasses
import io
import json
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from collectors.bpf.compile import path_choice_object
from orchestration.agent.bpf.elf import read_program
from orchestration.agent.linux_switch.paths import HEAD, ROUTE_BY
from orchestration.analysis.device_metrics import measure_paths
from orchestration.bench.rack import ROOT, closloop, device_dumps, program
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.results.reader import read_trial
from tests.emulated.paths_by_the_book import Chance, Packet, Switch
from tests.hardware import everything
from tests.hardware.paths_by_hand import DATAGRAMS, LINKED
from tests.hardware.rack_lab import provisioned_rack
from tests.testbeds import leaf_spine

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

MAPS = ("prefixes",)
# Spines have one port to each host, and nothing to choose: leaf1's and leaf2's uplinks matter.
TESTBED = leaf_spine("paths", 2, 2, 2, "10Gbps", "10Gbps", buffer="4MB")
CAMPAIGN = """
campaign: {name}
testbed: {folder}/paths.yml
backend: hardware
tuners: [{tuner}]
traffic:
  - {{kind: flow, src: h1, dst: h3, size: 2MB, start: 0ms}}
  - {{kind: flow, src: h2, dst: h4, size: 2MB, start: 0ms}}
repeats: 1
duration: 8ms
drain: 100ms
sample_period: 200us
{more}
"""
TUNER = """
from dataclasses import dataclass

import numpy as np

from closloop import KNOBS, BaseTuner, Setup


@dataclass
class Later(BaseTuner):
    observes = ("switch.reroutes",)
    knobs = ("ecn", "flowlet_timeout")

    def reset(self, testbed, seed):
        self.turned = False
        return Setup((KNOBS["ecn"].change(np.arange(len(testbed.queues)), 60_000, 90_000, 0.1),))

    def act(self, observation):
        assert len(observation["switch.reroutes"]) == 4
        known = observation.settings["flowlet_timeout"]["timeout_ns"].tolist()
        assert known == [1_000 if self.turned else 10**9, 10**9, 10**9, 10**9]
        if self.turned or observation.t_ns < 1_000_000:
            return ()
        self.turned = True
        return (KNOBS["flowlet_timeout"].change([0], 1_000),)
"""
LEVELS = (("ecmp", None), ("flowlets", 10**9), ("flowlets", 4_000), ("spray", 200_000))
FACTOR = """
factors:
  balancing:
    ecmp: ecmp
    never: {kind: flowlets, timeout: 1s}
    often: {kind: flowlets, timeout: 4us}
    spray: spray
load_balancing: $balancing
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The rack, provisioned, with its folder."""
    folder = tmp_path_factory.mktemp("paths")
    with provisioned_rack(folder, TESTBED) as rack:
        yield rack


def run(lab, name, more, code=0, tuner="secn1"):
    rack, folder = lab
    (folder / f"{name}.yml").write_text(
        CAMPAIGN.format(name=name, folder=folder, more=more, tuner=tuner)
    )
    arguments = ("run", f"{name}.yml", "-i", str(rack.inventory), "--json")
    found, text = closloop(rack, folder, *arguments)
    assert found == code, text + (folder / "log").read_text()[-3000:]
    return {
        json.loads((trial / "trial.json").read_text())["id"]: trial
        for trial in (folder / "runs" / name).glob("*/")
        if (trial / "trial.json").exists()
    }


def table(trial, name):
    return pq.read_table(trial / f"{name}.parquet").to_pylist()


@pytest.fixture(scope="module")
def by_hand(lab):
    """What a flow's datagrams did, step by step: see paths_by_hand.py. The rack is whole again."""
    rack, folder = lab
    before = device_dumps(rack)
    said = inside(lab, "paths_by_hand.py", str(rack.inventory))
    # shutting a port took its routes
    code, text = closloop(rack, folder, "provision", str(rack.inventory), "--json")
    assert code == 0, text
    assert device_dumps(rack) == before
    return said


def inside(lab, script, *arguments, given=None):
    """Run a Python script of this folder in the rack; return the JSON that it prints."""
    rack, folder = lab
    out, errors = io.BytesIO(), io.BytesIO()
    (folder / "given").write_text(json.dumps(given))
    path = str(Path(__file__).with_name(script))
    words = ["sh", "-c", 'exec "$@" < given', "sh", sys.executable, path, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = rack.run(words, cwd=folder, env=environment, stdout=out, stderr=errors)
    assert code == 0, errors.getvalue().decode()
    return json.loads(out.getvalue())


def one_port(by_hand, step):
    """Return the uplink that a step used, the only one; neighbours are asked for by both."""
    little, much = sorted(by_hand[step])
    assert little < 8, by_hand[step]
    assert DATAGRAMS <= much < DATAGRAMS + 8, by_hand[step]
    return by_hand[step].index(much)


def test_a_flow_of_datagrams_goes_as_the_agent_says(by_hand):
    ecmp = one_port(by_hand, "ecmp")
    assert set(map(tuple, by_hand["choices"].values())) == {("eth2", "eth3")}
    assert min(by_hand["spray"]) > DATAGRAMS / 4
    flowlets, reroutes, entries, overflows = by_hand["spray counts"]
    assert (flowlets, entries, overflows) == (DATAGRAMS, 0, 0)
    assert DATAGRAMS / 4 < reroutes < DATAGRAMS * 3 / 4
    # a flow's first flowlet takes its ECMP path, and no gap is longer
    assert one_port(by_hand, "long timeout") == one_port(by_hand, "after end") == ecmp
    assert by_hand["long counts"] == [1, 0, 1, 0]
    assert min(by_hand["short timeout"]) > DATAGRAMS / 4
    assert by_hand["short counts"][0] == 1 + DATAGRAMS


def test_a_port_without_a_link_is_left_with_the_next_packet(by_hand):
    assert one_port(by_hand, "where it is") != one_port(by_hand, "its link down")
    assert by_hand["down counts"][1] == by_hand["short counts"][1] + 1


def test_a_killed_agent_leaves_the_switch_as_it_was(by_hand):
    assert by_hand["linked"] == [1, 1]
    assert by_hand["linked after end"] == [0, 0]
    assert by_hand["killed"] != "it answers"
    assert by_hand["linked after kill"] == [0, 0]
    assert one_port(by_hand, "after kill") == one_port(by_hand, "ecmp")


PORTS = 3
SPECS = {
    "flowlets": LoadBalancingSpec("flowlets", 50_000, 50_000, entries=64),
    "round-robin": LoadBalancingSpec("flowlets", 50_000, 50_000, "round-robin", entries=64),
    "full": LoadBalancingSpec("flowlets", 300_000, 300_000, entries=4),
    "spray": LoadBalancingSpec("spray", entries=64),
}


def frame_of(packet):
    """Return a packet's Ethernet frame."""
    ip = struct.pack(
        ">BBHHHBBHII", 0x45, 0, 40, 1, 0x4000, 64, packet.protocol, 0, packet.src, packet.dst
    )
    return bytes(12) + b"\x08\x00" + ip + struct.pack(">HH16x", packet.sport, packet.dport)


@pytest.mark.parametrize("name", SPECS)
def test_the_program_chooses_by_the_rules(lab, name):
    """Draws, table, flowlets and counters of 600 packets, against a reader of the rules."""
    spec, drawn = SPECS[name], random.Random(4)
    flows = [
        Packet(0, 0x0A000101 + n, 0x0A000201 + n % 3, 4000 + n, 5000, drawn.choice((6, 17)), 54)
        for n in range(12)
    ]
    own = {flow.flow: drawn.randrange(PORTS) for flow in flows}
    packets = [drawn.choice(flows) for _ in range(600)]
    made = read_program(path_choice_object(spec.entries.bit_length() - 1).read_bytes(), maps=MAPS)
    timeout_ns = spec.timeout_ns(1)
    head = HEAD.pack(
        Chance(9, 2).state,
        timeout_ns or 10**9,
        0,
        ROUTE_BY.index(spec.route_by),
        spec.kind == "spray",
        *[0] * 5,
    )
    waits = [drawn.choice((0, 1_000, 20_000, 80_000)) for _ in packets]
    rows = [
        [wait, frame_of(packet).hex(), own[packet.flow], packet.key]
        for wait, packet in zip(waits, packets, strict=True)
    ]
    asked = {"program": made.to_json(), "head": head.hex(), "ports": PORTS, "packets": rows}
    found = inside(lab, "path_choice_runs.py", given=asked)
    switch = Switch(2, 9, 1, {}, list(range(PORTS)), spec, timeout_ns)
    for number, (packet, row) in enumerate(zip(packets, found, strict=True)):
        t_ns, place, redirected, *counts = row
        port = switch.choose(dataclasses.replace(packet, t=t_ns), own[packet.flow])
        assert place == port, number
        assert redirected == (port != own[packet.flow]), number
        assert counts == [switch.flowlets, switch.reroutes, switch.overflows], number
    assert switch.flowlets > 12
    assert (switch.overflows > 0) == (name == "full")


def uplinks(trial):
    """Return the packets that each leaf sent by its two uplinks."""
    last = {(row["device"], row["port"]): row["tx_packets"] for row in table(trial, "ports")}
    return {leaf: [last[leaf, port] for port in ("eth2", "eth3")] for leaf in ("leaf1", "leaf2")}


def totals(trial, signal):
    """Return a signal's last value by switch."""
    return {row["device"]: row[signal] for row in table(trial, "switches")}


@pytest.fixture(scope="module")
def compared(lab):
    """One campaign whose factor is the load balancing: its trials by level."""
    rack, _ = lab
    before = device_dumps(rack)
    trials = run(lab, "compared", FACTOR)
    assert device_dumps(rack) == before
    by_level = {}
    for trial in trials.values():
        spec = json.loads((trial / "trial.json").read_text())["spec"].get("load_balancing", {})
        by_level[spec.get("kind", "ecmp"), spec.get("edge_timeout_ns")] = trial
    return by_level


def test_a_factor_of_load_balancing_runs_on_the_rack(compared):
    found = {key: json.loads((trial / "trial.json").read_text()) for key, trial in compared.items()}
    assert all(one["stamp"]["valid"] for one in found.values())
    ecmp, never, often, spray = (found[key]["facts"] for key in LEVELS)
    assert "load_balancing" not in ecmp
    assert never["load_balancing"]["switches"] == ["leaf1", "leaf2"]
    assert often["load_balancing"]["reroutes"] > never["load_balancing"]["reroutes"] == 0
    assert spray["load_balancing"]["flowlets"] > often["load_balancing"]["flowlets"]


def test_a_timeout_that_no_gap_exceeds_is_ecmp(compared):
    plain, never = (uplinks(compared[key]) for key in LEVELS[:2])
    for leaf, ports in plain.items():
        for port, packets in enumerate(ports):
            assert never[leaf][port] == pytest.approx(packets, rel=0.05, abs=8), (plain, never)
    # one flowlet each of two flows there, and of what acknowledges them
    for name in ("flowlets", "flowlet_entries"):
        assert totals(compared[LEVELS[1]], name) == {
            "leaf1": 2, "leaf2": 2, "spine1": 0, "spine2": 0
        }  # fmt: skip


def test_flowlets_and_packets_use_both_paths(compared):
    often, spray = (compared[key] for key in LEVELS[2:])
    assert min(uplinks(often)["leaf1"]) > 0
    reroutes, flowlets = (totals(often, signal)["leaf1"] for signal in ("reroutes", "flowlets"))
    assert 0 < reroutes < flowlets
    for leaf, ports in uplinks(spray).items():
        assert min(ports) > 0.4 * sum(ports)
        # connections are made before, by ECMP, and three packets each of two at most
        assert 0 <= sum(ports) - totals(spray, "flowlets")[leaf] <= 6
    measured = measure_paths(read_trial(spray))
    assert measured["uplink_imbalance"] < 1.2
    assert measured["reroutes_per_flow"] > 100
    assert np.isnan(measured["out_of_order_share"]), "hosts of a rack do not count all packets"
    late = {row["host"]: row["out_of_order"] for row in table(spray, "hosts")}
    assert late["h3"] > 0


def test_a_tuner_sets_a_switchs_timeout_from_then_on(lab):
    _, folder = lab
    (folder / "mine.py").write_text(TUNER)
    flowlets = "load_balancing: {kind: flowlets, timeout: 1s}"
    ((_, trial),) = run(lab, "turned", flowlets, tuner="mine.py:Later").items()
    rows = table(trial, "actions_flowlet_timeout")
    assert [(row["device"], row["timeout_ns"]) for row in rows] == [("leaf1", 1_000)]
    (applied_ns,) = (row["applied_ns"] for row in rows)
    reroutes = [
        (row["t_ns"], row["reroutes"])
        for row in table(trial, "switches")
        if row["device"] == "leaf1"
    ]
    assert all(count == 0 for t_ns, count in reroutes if t_ns < applied_ns)
    assert reroutes[-1][1] > 100
    assert totals(trial, "reroutes")["leaf2"] == 0


def test_what_a_rack_is_said_to_measure_and_set_it_does(lab):
    tuner = f"{{name: {Path(everything.__file__)}:OnRack}}"
    (trial,) = run(lab, "everything", "load_balancing: flowlets", tuner=tuner).values()
    settings = ["ecn kmin_bytes", "flowlet_timeout timeout_ns"]
    everything.check(read_trial(trial), "hardware", settings)


def test_plan_asks_the_switches_and_refuses_what_none_of_them_has(lab):
    rack, folder = lab
    for name, route_by, wanted in (("fine", "round-robin", 0), ("conga", "conga", 2)):
        more = f"load_balancing: {{kind: flowlets, route_by: {route_by}}}"
        text = CAMPAIGN.format(name=name, folder=folder, more=more, tuner="secn1")
        (folder / f"{name}.yml").write_text(text)
        code, _ = closloop(rack, folder, "plan", f"{name}.yml", "-i", str(rack.inventory))
        assert code == wanted, (folder / "log").read_text()[-2000:]
    assert "no load balancing by conga" in (folder / "log").read_text()


def test_a_switch_whose_routes_are_others_is_named_before_anything_changes(lab):
    rack, folder = lab
    before = device_dumps(rack)
    hops = [f"nexthop via 198.18.0.{n + 1} dev eth{n} onlink" for n in (2, 3)]
    for name, wrong, says in (
        ("one-port", hops[:1], "leaf1: has no route through eth2 and eth3 together"),
        ("weights", [hops[0], f"{hops[1]} weight 3"], "its ports have different weights"),
    ):
        command = f"ip route replace 198.18.2.0/24 {' '.join(wrong)}"
        assert rack.run(["ssh", "leaf1", command]) == 0
        run(lab, name, "load_balancing: spray", code=3)
        assert says in (folder / "log").read_text().rpartition("load balancing by spray")[2]
    code, text = closloop(rack, folder, "provision", str(rack.inventory), "--json")
    assert code == 0, text
    assert device_dumps(rack) == before


def test_a_killed_controller_leaves_nothing_behind(lab):
    rack, folder = lab
    before = device_dumps(rack)
    text = CAMPAIGN.format(name="cut", folder=folder, more="load_balancing: spray", tuner="secn1")
    # little traffic that lasts
    lines = [line for line in text.splitlines() if "kind: flow," not in line]
    lines.insert(
        lines.index("traffic:") + 1, "  - {kind: poisson, workload: WebSearch, load: 0.02}"
    )
    (folder / "cut.yml").write_text("\n".join(lines).replace("8ms", "3s"))
    words = program("run", "cut.yml", "-i", str(rack.inventory))
    with (folder / "log").open("ab") as file:
        process = rack.start(words, folder, stdout=file, stderr=file)
        deadline = time.monotonic() + 300
        while linked(lab) != [1, 1]:
            assert time.monotonic() < deadline
        process.kill(signal.SIGKILL)
        process.wait()
    rack.let_pass(1)
    assert linked(lab) == [0, 0]
    rack.let_pass(60)  # the timers put settings back
    code, said = closloop(rack, folder, "restore", str(rack.inventory), "--runs-only", "--json")
    assert code == 0, said
    assert device_dumps(rack) == before


def linked(lab):
    """Return how many programs leaf1 has at the egress of each uplink."""
    rack, _ = lab
    out = io.BytesIO()
    assert rack.run(["ssh", "leaf1", f'python3 -c "{LINKED.format(ROOT)}"'], stdout=out) == 0
    return json.loads(out.getvalue())
