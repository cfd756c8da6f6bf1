"""A replay on Linux has its parent's tables, to the bit."""

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
    for table in ("schedule", "flows", "ports", "actions", "hosts"):
        ours, theirs = before.table(table), after.table(table)
        assert len(ours) == len(theirs) > 0
        for column in ours:
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=column)
    assert before.table("ports")["marked_packets"].sum() > 0
