"""The package `closloop` and what is generated from the declarations."""

import subprocess
import sys
from pathlib import Path

import pytest

import closloop
from orchestration.cli.signals import as_markdown, declared

ROOT = Path(__file__).resolve().parents[3]
CAMPAIGN = """
campaign: tiny
testbed: graphcc
backend: fluid
tuners: [secn1, secn2]
traffic:
  - {kind: incast, fan_in: 4, size: 64KB, period: 1ms}
repeats: 2
duration: 1ms
"""


def test_every_public_name_is_there():
    assert closloop.API_VERSION == "2.1"
    for name in closloop.__all__:
        assert getattr(closloop, name) is not None
    assert set(closloop.__all__) == set(dir(closloop))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = closloop.nothing


def test_importing_it_loads_nothing_heavy():
    program = "import sys, closloop; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {"numpy", "pyarrow", "torch", "duckdb", "typer"}.isdisjoint(done.stdout.split())


@pytest.mark.slow
def test_a_campaign_is_planned_run_asked_and_compared_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yml").write_text(CAMPAIGN, encoding="utf-8")
    assert len(closloop.plan("tiny.yml").trials) == 4
    summary = closloop.run("tiny.yml", jobs=1)
    assert (summary.exit_code, summary.finished) == (0, 4)
    counted = closloop.sql("runs", "select count(distinct trial) from flows").fetchall()
    assert counted == [(4,)]
    again = closloop.run("tiny.yml", jobs=1)
    assert (again.skipped, again.finished) == (4, 0)
    (comparison,) = closloop.compare("runs/tiny", "runs/tiny")
    assert comparison.verdict == "equivalent"
    assert closloop.summarise("runs/tiny").arms == ("secn1", "secn2")
    found = closloop.summarise("runs/tiny", baseline="secn2", judge="fct_p99")
    ((condition, *_), (item, *_)) = found.conditions, found.conditions[0].comparisons
    assert [arm.name for arm in condition.arms] == ["secn2", "secn1"]
    assert (item.metric, item.arm, item.judged) == ("fct_p99", "secn1", True)


def test_the_page_of_signals_is_what_is_declared():
    page = ROOT / "docs" / "generated" / "signals.md"
    assert page.read_text(encoding="utf-8") == as_markdown(declared()), (
        "closloop signals --markdown docs/generated/signals.md"
    )
