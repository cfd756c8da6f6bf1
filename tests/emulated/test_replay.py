"""A replay on Linux: the same schedule and actions, and flows that only Linux's draws part."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from orchestration.artifacts.reader import finished_trials, read_trial

CAMPAIGN = """campaign: old
testbed: rlcc-7
tuners: [amt]
traffic: [{kind: poisson, workload: FB_Hadoop, load: 0.2}]
repeats: 1
duration: 2ms
drain: 50ms
"""


def closloop(*arguments: str, cwd: Path) -> str:
    program = "from orchestration.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def common(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what both have: one of them may end a sample earlier, when its last flow has."""
    rows = min(len(ours), len(theirs))
    assert rows > 0.9 * max(len(ours), len(theirs))
    return ours[:rows], theirs[:rows]


def test_a_replay_repeats_flows_and_actions_on_linux(tmp_path):
    (tmp_path / "old.yml").write_text(CAMPAIGN, encoding="utf-8")
    closloop("run", "old.yml", "--json", cwd=tmp_path)
    # A relative path: the guest has to see the recording from where the user is.
    told = json.loads(closloop("replay", "runs/old", "--name", "again", "--json", cwd=tmp_path))
    assert (told["finished"], told["invalid"], told["failed"]) == (1, {}, {})
    again = json.loads(closloop("replay", "runs/old", "--name", "again", "--json", cwd=tmp_path))
    assert again["finished_earlier"] == 1
    (before,) = map(read_trial, finished_trials(tmp_path / "runs" / "old"))
    (after,) = map(read_trial, finished_trials(tmp_path / "runs" / "again"))
    assert after.spec.parent.startswith(f"old/{before.spec.id} sha256:")
    for table, same in (
        ("schedule", ("flow_id", "start_ns", "src", "dst", "bytes", "class")),
        ("actions", ("device", "port", "queue", "kmin_bytes", "kmax_bytes", "pmax")),
    ):
        for column in same:
            ours, theirs = common(before.table(table)[column], after.table(table)[column])
            np.testing.assert_array_equal(ours, theirs, err_msg=column)
    # each change answers the same sample, at most some ns of system calls apart
    ours, theirs = common(before.table("actions")["t_ns"], after.table("actions")["t_ns"])
    assert np.abs(ours - theirs).max() < 100
    ours, theirs = (np.median(trial.table("flows")["fct_ns"]) for trial in (before, after))
    assert abs(theirs / ours - 1) < 0.1
