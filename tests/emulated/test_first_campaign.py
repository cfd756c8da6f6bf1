"""What `closloop init` writes runs and is reported as it is, and every trial is valid."""

import json

import pytest

from orchestration.core.engines import KERNEL, PROCESS
from orchestration.run.folder import read_journal
from tests.programs import closloop


# of tuners secn1, secn2, amt, qaecn, acc and its placebo: ACC has packaged networks of either
# transport
@pytest.mark.slow
@pytest.mark.parametrize(
    ("compare", "engine", "testbed", "arms"),
    [
        ("ecn-tcp", KERNEL, "rlcc-7", 6),
        ("ecn-roce", PROCESS, "rlcc-7", 6),
        ("congestion-control", KERNEL, "rlcc-7", 4),
        ("buffers", PROCESS, "rlcc-7", 3),
        ("load-balancing", KERNEL, "drlet-k4", 4),
    ],
)
def test_a_first_campaign_runs_without_an_edit(compare, engine, testbed, arms, tmp_path):
    closloop("init", "first.yml", "--testbed", testbed, "--compare", compare, cwd=tmp_path)
    arguments = ("run", "first.yml", "--repeats", "1", "--jobs", "1", "--json")
    told = json.loads(closloop(*arguments, cwd=tmp_path))
    assert told["finished"] == told["trials"] == arms
    assert (told["invalid"], told["failed"]) == ({}, {})
    (started,) = (
        entry
        for entry in read_journal(tmp_path / "runs" / "first" / "journal.jsonl")
        if entry["event"] == "run-started"
    )
    assert started["engine"] == engine
    report = json.loads(closloop("report", "runs/first", "--json", cwd=tmp_path))
    assert len(report["answer"]["scorecard"]["arms"]) == arms - 1
