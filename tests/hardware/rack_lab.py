"""A provisioned virtual rack, and campaigns to run on it."""

import json
import re
import time
from contextlib import contextmanager

import pytest

from inventory.files import load_testbed
from orchestration.bench.rack import EIGHT_DEVICES, closloop, device_dumps
from orchestration.virtual_rack.control import up

MARKS = [
    pytest.mark.kernel,
    pytest.mark.redis,
    pytest.mark.ssh,
    pytest.mark.slow,
    # files run beside each other: three times what one takes alone
    pytest.mark.timeout(1200),
]

CAMPAIGN = """
campaign: {name}
testbed: {testbed}
backend: hardware
tuners: {tuners}
traffic: [{traffic}]
repeats: {repeats}
duration: {duration}
drain: 100ms
sample_period: {period}
"""

BUSY = (
    "{kind: poisson, workload: WebSearch, load: 0.3}, "
    "{kind: incast, fan_in: 3, size: 128KB, period: 1ms, start: 1ms}"
)
CALM = "{kind: poisson, workload: WebSearch, load: 0.01}"


@contextmanager
def provisioned_rack(folder, testbed, **how):
    """Bring up and provision a virtual rack of a testbed's text, in `folder`; end it afterwards."""
    file = folder / f"{re.search('name: (.+)', testbed)[1]}.yml"
    file.write_text(testbed)
    rack, _ = up(load_testbed(str(file)), folder=folder / "rack", **how)
    try:
        code, text = closloop(rack, folder, "provision", str(rack.inventory), "--json")
        assert code == 0, text
        yield rack, folder
    finally:
        rack.down()


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A rack that is not provisioned, with its folder."""
    folder = tmp_path_factory.mktemp("lab")
    testbed = folder / "eight.yml"
    testbed.write_text(EIGHT_DEVICES)
    rack, _ = up(load_testbed(str(testbed)), sonic=("spine2",), folder=folder / "eight")
    yield rack, folder
    rack.down()


@pytest.fixture(scope="module")
def lab(bare):
    """The rack, provisioned, with its folder."""
    rack, folder = bare
    code, text = closloop(rack, folder, "provision", str(rack.inventory), "--json")
    assert code == 0, text
    return rack, folder


@pytest.fixture
def unchanged(lab):
    """Every device is afterwards as it was before, by a look that takes no SSH."""
    rack, _ = lab
    before = device_dumps(rack)
    yield
    for name, found in device_dumps(rack).items():
        assert found == before[name], name


def campaign(
    folder,
    name,
    tuners="[secn1, secn2]",
    repeats=3,
    duration="3ms",
    period="100us",
    traffic=BUSY,
):
    path = folder / f"{name}.yml"
    path.write_text(
        CAMPAIGN.format(
            name=name,
            testbed=folder / "eight.yml",
            tuners=tuners,
            traffic=traffic,
            repeats=repeats,
            duration=duration,
            period=period,
        )
    )
    return path


def restless_campaign(folder, name, duration, period="2ms"):
    """One trial whose thresholds change at every sample, with little traffic: that takes CPU."""
    return campaign(folder, name, "[{name: random}]", 1, duration, period, CALM)


def run_on(rack, folder, path, *more):
    arguments = ("run", str(path), "-i", str(rack.inventory), "--json", *more)
    code, text = closloop(rack, folder, *arguments)
    return code, json.loads(text) if text.startswith("{") else text


def log(folder):
    return (folder / "log").read_text()


def wait_for_a_change(rack, what="sysctls", device="leaf1"):
    """Wait until a run has changed a device's settings, or its queues' thresholds (qdiscs)."""
    before = json.loads(rack.dump(device))[what]
    deadline = time.monotonic() + 400
    while json.loads(rack.dump(device))[what] == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
