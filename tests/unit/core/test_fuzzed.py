"""Inputs that fuzzing found, and those that it begins from: read, or refused with a reason."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))
from targets import FOUND, TARGETS, check


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: path.name)
def test_what_was_found_is_refused_with_a_reason(path, tmp_path):
    check(path.parent.name, path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_reads_a_valid_input_and_cuts_of_it(name, tmp_path):
    data = next(TARGETS[name].begins())
    TARGETS[name].read(data, tmp_path)
    for end in range(0, len(data), max(1, len(data) // 20)):
        for path in tmp_path.iterdir():
            path.unlink()
        check(name, data[:end], tmp_path)
