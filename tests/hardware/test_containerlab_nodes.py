"""An exported lab on nodes that are wired by its topology file, as `clab_nodes.py` does it.

They are namespaces in a virtual rack's guest, not containers, and not containerlab's; SSH, LLDP and
the start of a node are the lab's own.
"""

import json
import shlex
import sys
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.artifacts.found import trial_folders
from orchestration.artifacts.reader import read_trial
from orchestration.exchange.containerlab.folder import write_lab
from orchestration.exchange.containerlab.lab import Lab
from orchestration.studies.bench.rack import program
from orchestration.virtual_rack.control import up

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

NODES = Path(__file__).with_name("clab_nodes.py")
GUEST = """
name: guest
kind: single-switch
hosts: 2
host_link: {rate: 25Gbps, delay: 1us}
mtu: 1500B
buffer: 1MB
"""
FIVE = """
name: five
kind: leaf-spine
leaves: 2
spines: 1
hosts_per_leaf: 1
host_link: {rate: 10Gbps, delay: 1us}
uplink: {rate: 10Gbps, delay: 1us}
mtu: 1500B
buffer: 1MB
"""
CAMPAIGN = """
campaign: one-flow
testbed: {testbed}
backend: hardware
tuners: [{{name: static, kmin_bytes: 50000, kmax_bytes: 100000}}]
traffic:
  - {{kind: flow, src: h1, dst: h2, size: 1MB, start: 0ms}}
repeats: 1
duration: 20ms
drain: 50ms
sample_period: 1ms
"""
# Neighbours are heard from every 5 s.
WAIT_S = 12


@pytest.fixture(scope="module")
def guest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guest")
    (folder / "guest.yml").write_text(GUEST)
    rack, _ = up(load_testbed(str(folder / "guest.yml")), folder=folder / "rack")
    yield rack
    rack.down()


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "five.yml").write_text(FIVE)
    named = str(tmp_path / "five.yml")
    return write_lab(Lab(load_testbed(named)), named, tmp_path / "lab")


def on_nodes(guest, lab, commands):
    """Run verbs where the nodes are reached; return the exit code and output of each."""
    folder = lab.folder.parent
    lines = [f"sleep {WAIT_S}"]
    for number, words in enumerate(commands):
        verb = shlex.join(program(*map(str, words)))
        lines.append(f"{verb} >{number}.out 2>>log; echo $? >{number}.code")
    argv = [sys.executable, str(NODES), str(lab.topology), "sh", "-c", "\n".join(lines)]
    with (folder / "log").open("ab") as log:
        code = guest.run(argv, cwd=folder, stdout=log, stderr=log)
    assert code == 0, (folder / "log").read_text(errors="replace")
    return [
        (int((folder / f"{n}.code").read_text()), (folder / f"{n}.out").read_text())
        for n in range(len(commands))
    ]


def states(text):
    return json.loads(text)["devices"]


def test_its_inventory_is_proven_provisioned_and_runs_a_campaign(guest, lab, tmp_path):
    (tmp_path / "c.yml").write_text(CAMPAIGN.format(testbed=tmp_path / "five.yml"))
    check = ("inventory", "check", lab.inventory, "--json")
    told = on_nodes(
        guest,
        lab,
        [
            check,
            ("provision", lab.inventory, "--json"),
            check,
            ("run", tmp_path / "c.yml", "-i", lab.inventory, "--out", tmp_path / "runs"),
            ("provision", lab.inventory, "--undo", "--json"),
        ],
    )
    log = (tmp_path / "log").read_text(errors="replace")
    assert [code for code, _ in told] == [0] * len(told), f"{told}\n{log}"
    before, after = states(told[0][1]), states(told[2][1])
    assert list(before) == ["h1", "h2", "leaf1", "leaf2", "spine1"]
    for name, checks in before.items():
        assert checks.pop("fabric") == "unknown", name
        assert set(checks.values()) == {"ok"}, name
    assert (after["h1"]["fabric"], after["h2"]["fabric"]) == ("ok", "ok")
    (folder,) = trial_folders(tmp_path / "runs" / "one-flow")
    result = read_trial(folder)
    assert result.table("flows")["status"].tolist() == ["done"]
    assert result.stamp.valid, result.stamp.reasons


def test_cables_that_are_swapped_are_found(guest, lab):
    text = lab.topology.read_text()
    for old, new in (("h1", "h0"), ("h2", "h1"), ("h0", "h2")):
        text = text.replace(f"node: {old},", f"node: {new},")
    lab.topology.write_text(text)
    ((code, told),) = on_nodes(guest, lab, [("inventory", "check", lab.inventory, "--json")])
    assert code == 3
    wrong = {name for name, checks in states(told).items() if checks["cabling"] == "wrong"}
    assert wrong == {"h1", "h2", "leaf1", "leaf2"}
