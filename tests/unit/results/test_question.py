"""What a campaign asks: the compared factor, its arms, and the judge, also of files with errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestration.results.question import (
    TUNERS_COMPARED,
    Question,
    compared_factor,
    question_of,
    read_question,
)

LOADS: dict[str, Any] = {"factors": {"load": [0.3, 0.6]}}
CONTROLS: dict[str, Any] = {"factors": {"host.congestion_control": ["dcqcn", "swift"]}}
ARMS: dict[str, Any] = {"arms": {"ecmp": {"load_balancing": "ecmp"}, "none": {"faults": []}}}


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        (LOADS, Question("tuner", (), ())),
        (LOADS | {"compare": "load"}, Question("load", ("0.3", "0.6"), ())),
        (
            CONTROLS | {"compare": "congestion_control", "judge": "fct_mean"},
            Question("host.congestion_control", ("dcqcn", "swift"), ("fct_mean",)),
        ),
        (LOADS | ARMS, Question("arm", ("ecmp", "none"), ())),  # arms before tuners
        (LOADS | ARMS | {"compare": "tuners"}, Question("tuner", (), ())),
        (LOADS | {"compare": "laod", "judge": 3}, Question("tuner", (), ())),
        ({"factors": [], "arms": None, "compare": ["load"]}, Question("tuner", (), ())),
    ],
)
def test_the_question_of_a_file(data: dict[str, Any], asked: Question) -> None:
    assert question_of(data) == asked


def test_the_end_of_a_path_suffices_where_it_is_that_of_one_factor() -> None:
    assert compared_factor("tuners", []) == "tuner"
    assert compared_factor("kind", ["load_balancing.kind", "load"]) == "load_balancing.kind"
    assert compared_factor("kind", ["load_balancing.kind", "fabric.kind"]) == ""
    assert compared_factor("fabric.kind", ["load_balancing.kind", "fabric.kind"]) == "fabric.kind"


def test_the_arms_of_another_factor_are_in_the_files_order(tmp_path: Path) -> None:
    (tmp_path / "campaign.yml").write_text(
        "factors: {load: [0.3, 0.6], size: [20KB, 100KB]}\ncompare: load\njudge: fct_p99\n"
    )
    assert read_question(tmp_path) == Question("load", ("0.3", "0.6"), ("fct_p99",))
    other = read_question(tmp_path).comparing("size")
    assert other == Question("size", ("20KB", "100KB"), ("fct_p99",))
    assert read_question(tmp_path / "nowhere") == TUNERS_COMPARED
