"""A rack in real time of small devices, plain or containers, and a campaign for it."""

import io
import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from machine_state import family, gone, machine

from inventory.files import load_testbed
from orchestration.bench.rack import closloop
from orchestration.virtual_rack.control import up
from tests.testbeds import leaf_spine

FOUR = leaf_spine("four", 2, 1, 1, "20Mbps", "10Mbps", buffer="1MB")
CAMPAIGN = """
campaign: {control}
testbed: {testbed}
backend: hardware
host: {{congestion_control: {control}}}
tuners: [{{name: static, kmin_bytes: 10000, kmax_bytes: 30000, pmax: 0.2}}]
traffic:
  - {{kind: incast, fan_in: 1, size: 128KB, period: 300ms, start: 100ms}}
repeats: 1
duration: 1s
drain: 1s
sample_period: 20ms
"""


@pytest.fixture(scope="module")
def machine_before():
    return machine()


@pytest.fixture(scope="module")
def four_devices(tmp_path_factory):
    path = tmp_path_factory.mktemp("testbed") / "four.yml"
    path.write_text(FOUR)
    return load_testbed(str(path))


@contextmanager
def provisioned(testbed, folder, before, **kind):
    """Yield a provisioned rack in a folder with its testbed's file; look that nothing of it stays.

    `kind` are arguments of `up`.
    """
    (folder / "four.yml").write_text(FOUR)
    rack, started_here = up(testbed, clock="real", folder=folder / "rack", **kind)
    processes = set()
    try:
        assert started_here
        code, text = closloop(rack, folder, "provision", str(rack.inventory), "--json")
        assert code == 0, text
        yield rack
        processes = family(rack.status()["pid"])
    finally:
        rack.down()
    gone(processes)
    assert not rack.folder.exists()
    assert machine() == before


def facts_of_a_campaign(rack, folder, control):
    """Run a campaign of one trial; return its facts."""
    text = CAMPAIGN.format(testbed=folder / "four.yml", control=control)
    (folder / f"{control}.yml").write_text(text)
    words = ("run", str(folder / f"{control}.yml"), "-i", str(rack.inventory), "--json")
    # on a busy machine its trial may be invalid, and says so
    code, text = closloop(rack, folder, *words)
    assert code in (0, 1), text
    (trial,) = (folder / "runs" / control).glob("*/trial.json")
    facts = json.loads(trial.read_text())["facts"]
    assert facts["clock"] == "real"
    assert facts["read_back"]["wrong"] == 0
    assert facts["read_back"]["equal"] > 0
    return facts


def in_rack(rack, *argv):
    """Run a program in the rack; return its code and all that it printed."""
    printed = io.BytesIO()
    code = rack.run(argv, stdout=printed, stderr=printed)
    return code, printed.getvalue().decode()


def on(rack, device, command):
    """Run a command on a device over SSH; return its code and output."""
    return in_rack(rack, "ssh", device, command)


def first_process(status):
    """Return the first process of a rack's namespaces, by the rack's status."""
    guest = status["guest_pid"]
    (first,) = Path(f"/proc/{guest}/task/{guest}/children").read_text().split()
    return int(first)
