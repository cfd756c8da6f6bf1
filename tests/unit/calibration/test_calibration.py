"""Calibration on the fluid model, whose physics are those of its testbed, and corrections by it."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from inventory.files import edited_testbed_text, load_testbed
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.calibration.measure import (
    calibrate,
    correction,
    marking,
    read_calibration,
    to_json,
)
from orchestration.calibration.probes import path_kinds
from orchestration.cli.main import app
from orchestration.core.errors import InputError
from orchestration.core.records import Samples


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    testbed = load_testbed("graphcc")
    return calibrate(FluidBackend(), "fluid", testbed, "graphcc", tmp_path_factory.mktemp("runs"))


def moved(calibration, host_link_ns, uplink_ns, framing_bytes):
    """The same, of a fabric with longer links and more framing."""
    rtts = tuple(
        dataclasses.replace(
            rtt,
            median_ns=rtt.median_ns
            + 2 * host_link_ns * rtt.path.links_of_tier[1]
            + 2 * uplink_ns * rtt.path.links_of_tier.get(2, 0),
        )
        for rtt in calibration.rtts
    )
    goodput = dataclasses.replace(
        calibration.goodput, framing_bytes=calibration.goodput.framing_bytes + framing_bytes
    )
    return dataclasses.replace(calibration, rtts=rtts, goodput=goodput)


def test_kinds_of_paths_by_the_links_they_have():
    kinds = path_kinds(load_testbed("drlet-k4"))
    assert [kind.links_of_tier for kind in kinds] == [{1: 2}, {1: 2, 2: 2}, {1: 2, 2: 2, 3: 2}]


def test_the_model_does_what_its_testbed_says(measured):
    assert [(r.median_ns, r.testbed_ns) for r in measured.rtts] == [(4000, 4000), (8000, 8000)]
    assert measured.goodput.measured_bps == pytest.approx(measured.goodput.testbed_bps, rel=1e-4)
    assert measured.goodput.framing_bytes == pytest.approx(24, abs=0.1)
    assert measured.loop.count > 20
    held = max(measured.marking, key=lambda found: found.packets)
    assert held.low <= held.wanted_share <= held.high


def test_a_testbed_that_is_right_is_left_as_it_is(measured):
    change = correction(load_testbed("graphcc"), measured, None)
    assert (change.framing_bytes, change.delay_change_ns) == (24, {1: 0, 2: 0})


def test_the_twin_gets_what_the_other_has_more(measured):
    like = moved(measured, host_link_ns=150, uplink_ns=-40, framing_bytes=8)
    change = correction(load_testbed("graphcc"), measured, like)
    assert (change.framing_bytes, change.delay_change_ns) == (32, {1: 150, 2: -40})


@pytest.mark.slow
def test_a_corrected_testbed_does_what_was_wanted(measured, tmp_path):
    like = moved(measured, 150, -40, 8)
    change = correction(load_testbed("graphcc"), measured, like)
    file = tmp_path / "twin.yml"
    file.write_text(
        edited_testbed_text("graphcc", "twin", change.framing_bytes, change.delay_change_ns)
    )
    again = calibrate(FluidBackend(), "fluid", load_testbed(str(file)), str(file), tmp_path)
    assert [r.median_ns for r in again.rtts] == [r.median_ns for r in like.rtts]
    assert again.goodput.framing_bytes == pytest.approx(like.goodput.framing_bytes, abs=0.6)


def test_nothing_else_of_the_file_changes():
    before = edited_testbed_text("graphcc", "graphcc", 24, {}).splitlines()
    after = edited_testbed_text("graphcc", "graphcc", 30, {1: 13, 2: -5000}).splitlines()
    changed = [line for line in after if line not in before]
    assert changed == [
        "framing: 30B",
        "host_link: {rate: 25Gbps, delay: 1.013us}",
        "uplink: {rate: 100Gbps, delay: 1ns}",  # no less
    ]
    assert before[0].startswith("# Bern")


def test_links_of_a_file_that_lists_them(tmp_path):
    file = tmp_path / "own.yml"
    file.write_text(
        "kind: custom\nname: own\nmtu: 1500B\nbuffer: 1MB\nhosts: [h1, h2]\n"
        "switches: [{name: leaf1, tier: 1}]\nlinks:\n"
        "  - {a: h1, b: leaf1, rate: 10Gbps, delay: 1us}\n"
        "  - {a: leaf1, b: h2, rate: 10Gbps, delay: 3us}\n"
    )
    text = edited_testbed_text(str(file), "own2", 24, {1: 7})
    assert "delay: 1.007us" in text
    assert "delay: 3.007us" in text


def test_the_share_marked_by_queue_length():
    """A queue that stands still at each length, marked as the line says: the line is found."""
    testbed = load_testbed("graphcc")
    queue = next(n for n, q in enumerate(testbed.queues) if testbed.peer_device(q).name == "h1")
    lengths = np.repeat([10_000, 60_000, 135_000, 230_000], 50)
    shares = np.interp(lengths, [30_000, 240_000], [0, 0.1])
    packets = np.cumsum(np.full(len(lengths), 10_000))
    shape = (len(lengths), len(testbed.queues))
    zeros = np.zeros(shape, dtype=np.int64)
    qlen, sent, marks = zeros.copy(), zeros.copy(), zeros.copy()
    qlen[:, queue], sent[:, queue] = lengths, packets
    marks[:, queue] = np.cumsum(10_000 * shares).astype(int)
    ports = Samples.of("queue", np.arange(len(lengths)) * 1000, qlen, zeros, sent, marks, zeros)
    found = marking(testbed, ports)
    assert [b.marked_share for b in found] == pytest.approx([0, 0.0143, 0.05, 0.0952], abs=2e-4)
    assert all(b.low <= b.wanted_share <= b.high for b in found)


def test_a_calibration_comes_back_from_its_file(measured, tmp_path):
    file = tmp_path / "c.json"
    file.write_text(json.dumps(to_json(measured)))
    assert read_calibration(file) == measured


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "closloop calibration 1"}'])
def test_what_is_no_calibration_is_refused(tmp_path, text):
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(InputError, match="is not a calibration"):
        read_calibration(file)


@pytest.mark.slow
def test_the_verb_compares_and_writes(measured, tmp_path):
    like, twin = tmp_path / "rack.json", tmp_path / "twin.yml"
    like.write_text(json.dumps(to_json(moved(measured, 100, 100, 0))))
    asked = ["calibrate", "graphcc", "--on", "fluid", "--like", str(like), "--write", str(twin)]
    result = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "runs"), "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert [r["median_ns"] for r in said["corrected"]["rtts"]] == [4400, 8800]
    assert load_testbed(str(twin)).name == "twin"
    assert len(list((tmp_path / "runs").glob("calibrate-*/*/trial.json"))) == 6


def test_a_file_that_is_there_is_not_written_over(measured, tmp_path):
    twin = tmp_path / "twin.yml"
    twin.write_text("mine")
    asked = ["calibrate", "graphcc", "--on", "fluid", "--write", str(twin), "--out", str(tmp_path)]
    result = CliRunner().invoke(app, asked)
    assert isinstance(result.exception, InputError)
    assert "is there already" in str(result.exception)
    assert twin.read_text() == "mine"
