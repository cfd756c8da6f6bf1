"""What `closloop init` writes runs as it is, in the kernel, and every trial is valid."""

import json

import pytest

from tests.programs import closloop

# secn1, secn2, amt, qaecn, acc and its placebo: ACC has packaged networks of either transport
ARMS = 6


@pytest.mark.parametrize("compare", ["ecn-tcp", "ecn-roce"])
def test_a_first_campaign_runs_without_an_edit(compare, tmp_path):
    closloop("init", "first.yml", "--testbed", "rlcc-7", "--compare", compare, cwd=tmp_path)
    arguments = ("run", "first.yml", "--repeats", "1", "--jobs", "1", "--json")
    told = json.loads(closloop(*arguments, cwd=tmp_path))
    assert told["finished"] == told["trials"] == ARMS
    assert (told["invalid"], told["failed"]) == ({}, {})
