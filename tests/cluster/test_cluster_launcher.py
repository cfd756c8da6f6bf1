"""A cluster that closloop starts itself, with a node that it logs in to, and that it stops."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import cluster_trials as trials
import pytest

from orchestration.run.folder import read_journal

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
      vars: {{ansible_host: 127.0.0.1}}
      hosts:
"""
MACHINE = """\
        {name}:
          ansible_port: {port}
          ansible_user: {user}
          ansible_ssh_private_key_file: {key}
          ansible_python_interpreter: {python}
"""
# What somebody does who knows a cluster's address and nothing else.
INTRUDER = """\
import ray

ray.init(address="ADDRESS", log_to_driver=False)
print("ran", ray.get(ray.remote(num_cpus=0)(lambda: 6 * 7).remote(), timeout=60))
"""


def raylets(said):
    """Return the raylets of the cluster whose head a run has named, by their process ids."""
    (port,) = re.findall(r"head of a cluster at \S+:(\d+),", said)
    return trials.processes("raylet/raylet", "--gcs-address=", f":{port}\0")


def write_python(path, more=""):
    """Write a Python that has closloop, as machines of a cluster have it."""
    exports = f"export PYTHONPATH={ROOT} RAY_worker_niceness=0"
    path.write_text(f'#!/bin/sh\n{exports}\n{more}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def write_inventory(tmp_path, machines):
    """Write an inventory of machines by name, each an SSH server and a Python; return its path."""
    known = tmp_path / "known_hosts"
    known.write_text("".join(server.known_hosts.read_text() for server, _ in machines.values()))
    texts = [
        MACHINE.format(
            name=name, port=server.port, user=server.user, key=server.key_file, python=python
        )
        for name, (server, python) in machines.items()
    ]
    path = tmp_path / "machines.yml"
    path.write_text(INVENTORY.format(known=known) + "".join(texts))
    return path


def home_with_token(path, token):
    """Make a home folder with a token, "" for none, as Ray looks for one."""
    (path / ".ray").mkdir(parents=True)
    if token:
        (path / ".ray" / "auth_token").write_text(token)
    return path


def run(tmp_path, loopback, python):
    inventory = write_inventory(tmp_path, {"second": (loopback, python)})
    campaign = trials.write_campaign(tmp_path, repeats=3, nap_s=0.1)
    return closloop(tmp_path, "run", campaign, "--no-report", "--cluster", inventory)


def command_of(*words):
    return [sys.executable, "-c", MAIN, *map(str, words)]


def environment(**variables):
    """Return this process's environment with variables, and without those of a user of Ray."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    return {**kept, "PYTHONPATH": str(ROOT), **NOT_NICE, **variables}


def closloop(tmp_path, *words, **variables):
    return subprocess.run(
        command_of(*words),
        cwd=tmp_path,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


def intrude(address, home):
    """Return what comes of it when somebody without a token uses a cluster."""
    return subprocess.run(
        [sys.executable, "-c", INTRUDER.replace("ADDRESS", address)],
        env=environment(HOME=str(home), RAY_NUM_REDIS_GET_RETRIES="1"),
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def ray_head(tmp_path, home, mode):
    """Run a head as a user starts one; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    options = ["--head", "--block", "--disable-usage-stats", f"--port={port}", "--num-cpus=1"]
    options += ["--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    # short: Ray's sockets are below it
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        with (tmp_path / "head.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *options, f"--temp-dir={folder}/ray"],
                env=environment(HOME=str(home), RAY_AUTH_MODE=mode),
                stdout=log,
                stderr=log,
            )
        try:
            started = b"Ray runtime started"
            trials.until(lambda: started in (tmp_path / "head.log").read_bytes(), "Ray has started")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def test_a_cluster_is_started_on_an_inventory_and_nothing_of_it_is_left(tmp_path, loopback):
    named = f'echo "$RAY_AUTH_TOKEN_PATH" >>{tmp_path}/tokens'
    done = run(tmp_path, loopback, write_python(tmp_path / "python3", named))
    assert done.returncode == 0, done.stderr
    assert "2 nodes" in done.stderr
    events = [entry["event"] for entry in read_journal(tmp_path / "runs/tiny/journal.jsonl")]
    assert events.count("trial-finished") == 6
    assert events[-1] == "run-finished"
    assert raylets(done.stderr) == []
    (token,) = {Path(line) for line in (tmp_path / "tokens").read_text().splitlines()}
    assert not token.parent.exists()


def test_a_machine_without_ray_is_named_with_what_it_says(tmp_path, loopback):
    python = write_python(tmp_path / "python3")
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


def test_a_cluster_lets_nobody_in_without_its_token_and_forgets_it_when_killed(
    tmp_path, loopback, jump_hosts
):
    homes = {
        name: home_with_token(tmp_path / name, token)
        for name, token in (("here", "of-this-machine"), ("with", "of-a-node"), ("without", ""))
    }
    machines = {
        name: (server, write_python(tmp_path / f"{name}-python3", f"export HOME={homes[name]}"))
        for name, server in (("with", loopback), ("without", jump_hosts[0]))
    }
    inventory = write_inventory(tmp_path, machines)
    campaign = trials.write_campaign(tmp_path, repeats=2, nap_s=600.0)
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            command_of("run", campaign, "--no-report", "--cluster", inventory),
            cwd=tmp_path,
            env=environment(
                HOME=str(homes["here"]), RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN="of-the-shell"
            ),
            stdout=said,
            stderr=said,
        )
    journal = tmp_path / "runs/tiny/journal.jsonl"

    def heard():
        return (tmp_path / "said").read_text()

    def has_finished_trials():
        assert process.poll() is None, heard()
        return [entry for entry in read_journal(journal) if entry["event"] == "trial-finished"]

    try:
        trials.until(has_finished_trials, "trials are done")
        assert "3 nodes" in heard()
        (address,) = re.findall(r"head of a cluster at (\S+),", heard())

        refused = intrude(address, tmp_path)
        assert refused.returncode != 0
        assert "ran 42" not in refused.stdout
        assert "InvalidAuthToken" in refused.stderr

        pids = raylets(heard())
        files = {Path(trials.environment(pid)["RAY_AUTH_TOKEN_PATH"]) for pid in pids}
        assert len(files) == len(pids) == 3
        (token,) = {file.read_text().strip() for file in files}
        assert len(token) >= 43  # 256 bits
        modes = {
            (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) for file in files
        }
        assert modes == {(0o600, 0o700)}
        assert trials.processes(token) == []
        read = [
            path
            for folder in (*(file.parent for file in files), tmp_path)
            for path in folder.rglob("*")
            if path.is_file() and path not in files
        ]
        assert any(path.name == "raylet.out" for path in read)
        assert [path for path in read if token.encode() in path.read_bytes()] == []
        kept = [home / ".ray/auth_token" for home in homes.values()]
        texts = [one.read_text() if one.exists() else "" for one in kept]
        assert texts == ["of-this-machine", "of-a-node", ""]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    trials.until(lambda: raylets(heard()) == [], "Ray has ended everywhere")
    trials.until(lambda: not any(file.parent.exists() for file in files), "nothing of it is left")


def test_a_cluster_of_the_users_own_gets_the_users_token(tmp_path):
    home = home_with_token(tmp_path / "home", "as-ray-get-auth-token-makes-it")
    campaign = trials.write_campaign(tmp_path, repeats=1)
    with ray_head(tmp_path, home, "token") as address:
        words = ("run", campaign, "--no-report", "--cluster", address)
        missing = closloop(tmp_path, *words, HOME=str(tmp_path))
        assert missing.returncode == 3
        file = tmp_path / ".ray/auth_token"
        assert f"the Ray cluster at {address} requires a token, and {file} cannot" in missing.stderr
        assert "ray get-auth-token" in missing.stderr
        wrong = closloop(tmp_path, *words, HOME=str(home), RAY_AUTH_TOKEN="another-one")
        assert wrong.returncode == 3
        assert f"{address} refuses the token of RAY_AUTH_TOKEN" in wrong.stderr
        assert "another-one" not in wrong.stderr
        assert not (tmp_path / "runs").exists()
        done = closloop(tmp_path, *words, HOME=str(home))
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr


def test_a_cluster_that_asks_for_no_token_is_used_and_warned_of(tmp_path):
    home = home_with_token(tmp_path / "home", "of-another-cluster")
    campaign = trials.write_campaign(tmp_path, repeats=1)
    with ray_head(tmp_path, home, "disabled") as address:
        words = ("run", campaign, "--no-report", "--cluster", address)
        done = closloop(tmp_path, *words, HOME=str(home), RAY_AUTH_MODE="token")
        assert done.returncode == 0, done.stderr
        (line,) = [one for one in done.stderr.splitlines() if "warning" in one]
        assert f"the Ray cluster at {address} requires no token" in line
