"""Thresholds that no flow answers, on any engine and in ns-3: nothing differs, and it is said."""

import json
import subprocess
import sys

import pytest

from orchestration.analysis.counters import UNANSWERED
from orchestration.core.engines import KERNEL, PROCESS
from orchestration.results.reader import read_trial

CAMPAIGN = """\
campaign: marks
testbed: graphcc
host: {{congestion_control: $cc}}
tuners: [secn1, {{name: static, label: low, kmin_bytes: 3KB, kmax_bytes: 3KB, pmax: 1}}]
traffic:
  - {{kind: incast, fan_in: 16, size: 64KB, period: 1ms}}
factors: {{cc: [{controls}]}}
duration: 1ms
repeats: 1
{more}
"""
TCP, ROCE = "dctcp, cubic, reno, bbr", "dcqcn, swift, timely, hpcc, fixed"


def closloop(*arguments, cwd):
    program = "from orchestration.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "engine", "controls", "more"),
    [
        ("emulated", PROCESS, "dcqcn, fixed", ""),
        ("emulated", KERNEL, TCP, ""),
        ("emulated", KERNEL, TCP, "fabric: linux"),
        ("emulated", KERNEL, ROCE, ""),
        pytest.param("simulated", "", "dctcp, cubic, reno", "", marks=pytest.mark.ns3),
        pytest.param("simulated", "", ROCE, "", marks=pytest.mark.ns3),
    ],
)
def test_what_is_declared_of_controls_is_so(backend, engine, controls, more, tmp_path):
    """Under those that answer marks flows end at other times, under all others at the same."""
    (tmp_path / "marks.yml").write_text(CAMPAIGN.format(controls=controls, more=more))
    where = ("--on", backend, *(("--in", engine) if engine else ()))
    code, _, said = closloop("run", "marks.yml", *where, "--no-report", cwd=tmp_path)
    assert code == 0, said
    answering, *others = controls.split(", ")
    for control in others:
        assert f"no flow responds to CE packets under {control}, so tuners low and secn1" in said
    ends = {}
    for folder in (tmp_path / "runs" / "marks").glob("*-r1-*"):
        trial = read_trial(folder)
        control, codes = trial.spec.cell["cc"], [one.code for one in trial.stamp.reasons]
        assert (UNANSWERED in codes) == (control != answering)
        assert trial.ports.marked_packets.any() == (control == answering)
        ends.setdefault(control, set()).add(tuple(trial.table("flows")["end_ns"]))
    assert {control: len(found) for control, found in ends.items()} == {
        answering: 2,
        **dict.fromkeys(others, 1),
    }
    code, out, _ = closloop("report", "runs/marks", "--json", "--no-html", cwd=tmp_path)
    report = json.loads(out)
    for condition in report["conditions"]:
        same = condition["factors"]["cc"] != answering
        assert all(one["identical"] for one in condition["comparisons"]) == same
    found = {one["condition"]: one for one in report["answer"]["by_condition"]}
    for control in others:
        assert found[f"cc {control}"]["sentence"] == (
            "No difference: secn1 and low are identical in every pair: no flow answers ECN marks "
            f"under {control}."
        )


def test_a_campaign_in_which_no_flow_answers_marks_does_not_run(tmp_path):
    (tmp_path / "marks.yml").write_text(CAMPAIGN.format(controls="cubic", more=""))
    for verb in ("plan", "run"):
        code, _, said = closloop(verb, "marks.yml", cwd=tmp_path)
        assert code == 2
        assert said.startswith("marks.yml:4: tuners low and secn1 set ECN thresholds only")
    assert not (tmp_path / "runs").exists()
