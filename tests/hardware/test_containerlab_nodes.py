"""An exported lab on containers that are wired by its topology file, as `clab_nodes.py` does it.

The containers are a runtime's, of the image that a virtual rack's devices have, and not
containerlab's; SSH, LLDP and the start of a node are the lab's own.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from inventory.files import load_testbed
from inventory.rack import Lacking
from orchestration.backends.emulated.host_kernel import missing_parts
from orchestration.bench.rack import program
from orchestration.exchange.containerlab.lab import Lab, write_lab
from orchestration.results.reader import read_trial, trial_folders
from orchestration.virtual_rack import control_groups

sys.path.insert(0, str(Path(__file__).parent))

from machine_state import machine, nothing_stays

from tests.testbeds import leaf_spine

pytestmark = [
    pytest.mark.root,
    pytest.mark.containers,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_machine"),
]

NODES = Path(__file__).with_name("clab_nodes.py")
FIVE = leaf_spine("five", 2, 1, 1, "20Mbps", "10Mbps", buffer="1MB")
CAMPAIGN = """
campaign: one-flow
testbed: {testbed}
backend: hardware
host: {{congestion_control: reno}}
tuners: [{{name: static, kmin_bytes: 10000, kmax_bytes: 30000}}]
traffic:
  - {{kind: flow, src: h1, dst: h2, size: 100KB, start: 0ms}}
repeats: 1
duration: 200ms
drain: 1s
sample_period: 20ms
"""
# Neighbours are heard from every 5 s.
WAIT_S = 12


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "five.yml").write_text(FIVE)
    named = str(tmp_path / "five.yml")
    written = write_lab(Lab(load_testbed(named)), named, tmp_path / "lab")
    # nodes have this machine's kernel, as containerlab's have
    lacks = ", ".join(sorted({*missing_parts()} & {*get_args(Lacking)}))
    text = written.inventory.read_text()
    shape = "    closloop_shape: true\n"
    assert shape in text
    written.inventory.write_text(text.replace(shape, f"{shape}    closloop_lacks: [{lacks}]\n"))
    return written


def on_nodes(lab, commands):
    """Run verbs where the nodes are reached; return the exit code and output of each."""
    folder = lab.folder.parent
    before = machine()
    lines = [f"sleep {WAIT_S}"]
    for number, words in enumerate(commands):
        verb = shlex.join(program(*map(str, words)))
        lines.append(f"{verb} >{number}.out 2>>log; echo $? >{number}.code")
    argv = [sys.executable, str(NODES), str(lab.topology), "sh", "-c", "\n".join(lines)]
    with (folder / "log").open("ab") as log:
        code = subprocess.run(argv, cwd=folder, stdout=log, stderr=log, check=False).returncode
    assert code == 0, (folder / "log").read_text(errors="replace")
    nothing_stays(before)
    assert control_groups.orphaned_groups() == []
    return [
        (int((folder / f"{n}.code").read_text()), (folder / f"{n}.out").read_text())
        for n in range(len(commands))
    ]


def states(text):
    return json.loads(text)["devices"]


def test_its_inventory_is_proven_provisioned_and_runs_a_campaign(lab, tmp_path):
    (tmp_path / "c.yml").write_text(CAMPAIGN.format(testbed=tmp_path / "five.yml"))
    check = ("inventory", "check", lab.inventory, "--json")
    told = on_nodes(
        lab,
        [
            check,
            ("provision", lab.inventory, "--json"),
            check,
            ("run", tmp_path / "c.yml", "-i", lab.inventory, "--out", tmp_path / "runs", "--json"),
            ("provision", lab.inventory, "--undo", "--json"),
        ],
    )
    log = (tmp_path / "log").read_text(errors="replace")
    codes = [code for code, _ in told]
    # on a busy machine its trial may be invalid, and says so
    assert codes[:3] + codes[4:] == [0] * 4, f"{told}\n{log}"
    assert codes[3] in (0, 1), f"{told}\n{log}"
    before, after = states(told[0][1]), states(told[2][1])
    assert list(before) == ["h1", "h2", "leaf1", "leaf2", "spine1"]
    for name, checks in before.items():
        assert checks.pop("fabric") == "unknown", name
        assert set(checks.values()) == {"ok"}, name
    assert (after["h1"]["fabric"], after["h2"]["fabric"]) == ("ok", "ok")
    (folder,) = trial_folders(tmp_path / "runs" / "one-flow")
    result = read_trial(folder)
    assert result.table("flows")["status"].tolist() == ["done"]
    assert result.facts["read_back"]["wrong"] == 0
    assert result.facts["read_back"]["equal"] > 0


def test_cables_that_are_swapped_are_found(lab):
    text = lab.topology.read_text()
    for old, new in (("h1", "h0"), ("h2", "h1"), ("h0", "h2")):
        text = text.replace(f"node: {old},", f"node: {new},")
    lab.topology.write_text(text)
    ((code, told),) = on_nodes(lab, [("inventory", "check", lab.inventory, "--json")])
    assert code == 3
    wrong = {name for name, checks in states(told).items() if checks["cabling"] == "wrong"}
    assert wrong == {"h1", "h2", "leaf1", "leaf2"}
