"""A cluster that closloop starts itself, with a node that it logs in to, and that it stops."""

import os
import re
import subprocess
import sys
from pathlib import Path

import cluster_trials as trials
import pytest

from orchestration.runner.journal import read_journal

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from orchestration.cli.main import main; main()"
# Else nodes get nothing of a machine that is busy.
NOT_NICE = {"RAY_worker_niceness": "0"}
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
INVENTORY = """\
all:
  vars: {{closloop_known_hosts: {known}}}
  children:
    cluster:
      hosts:
        second:
          ansible_host: 127.0.0.1
          ansible_port: {port}
          ansible_user: {user}
          ansible_ssh_private_key_file: {key}
          ansible_python_interpreter: {python}
"""


def raylets(said):
    """Return the raylets of the cluster whose head a run has named, by their process ids."""
    (address,) = re.findall(r"head of a cluster at (\S+),", said)
    return trials.processes("raylet/raylet", address)


@pytest.fixture
def python(tmp_path):
    """A Python that has closloop, as machines of a cluster have it."""
    made = tmp_path / "python3"
    exports = f"export PYTHONPATH={ROOT} RAY_worker_niceness=0"
    made.write_text(f'#!/bin/sh\n{exports}\nexec {sys.executable} "$@"\n')
    made.chmod(0o755)
    return made


def run(tmp_path, loopback, python):
    inventory = tmp_path / "machines.yml"
    text = INVENTORY.format(
        known=loopback.known_hosts,
        port=loopback.port,
        user=loopback.user,
        key=loopback.key_file,
        python=python,
    )
    inventory.write_text(text)
    campaign = trials.write_campaign(tmp_path, repeats=3, nap_s=0.1)
    return closloop(tmp_path, "run", campaign, "--no-report", "--cluster", inventory)


def closloop(tmp_path, *words):
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, words)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **NOT_NICE},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cluster_is_started_on_an_inventory_and_nothing_of_it_is_left(tmp_path, loopback, python):
    done = run(tmp_path, loopback, python)
    assert done.returncode == 0, done.stderr
    assert "2 nodes" in done.stderr
    events = [entry["event"] for entry in read_journal(tmp_path / "runs/tiny/journal.jsonl")]
    assert events.count("trial-finished") == 6
    assert events[-1] == "run-finished"
    assert raylets(done.stderr) == []


def test_a_machine_without_ray_is_named_with_what_it_says(tmp_path, loopback, python):
    python.write_text("#!/bin/sh\necho No module named ray >&2\nexit 1\n")
    done = run(tmp_path, loopback, python)
    assert done.returncode == 3
    assert "second: Ray does not start there: No module named ray" in done.stderr
    assert "closloop[cluster]" in done.stderr
    assert raylets(done.stderr) == []


def test_an_address_where_no_cluster_is_is_said(tmp_path):
    campaign = trials.write_campaign(tmp_path)
    done = closloop(tmp_path, "run", campaign, "--cluster", "127.0.0.1:1")
    assert done.returncode == 3
    assert "nothing answers at 127.0.0.1:1" in done.stderr
    assert not (tmp_path / "runs").exists()
