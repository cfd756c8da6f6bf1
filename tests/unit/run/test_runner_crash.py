"""What happens to one trial in the packet engine is one failed trial, with its seed: no more.

A policy that crashes, aborts or leaves; a worker that is killed, as the kernel does when memory is
short; an engine that gets no memory.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestration.backends.emulated.process_backend import ProcessBackend
from orchestration.campaign.expand import load_campaign
from orchestration.datapath import native_policy
from orchestration.run.executors import ProcessPool
from orchestration.run.folder import read_journal
from orchestration.run.worker import Failed, Job, work
from tests.programs import Ended, closloop_in_process

PROGRAM = "from orchestration.cli.main import main; main()"
CAMPAIGN = """campaign: crash
testbed: rlcc-7
host: {{congestion_control: $cc}}
factors: {{cc: {{{levels}}}}}
tuners: [secn1]
traffic: [{{kind: incast, fan_in: 6, size: {size}, period: 10ms, stop: 1ms}}]
repeats: 1
duration: 2ms
drain: 100ms
"""
POLICY = """#include "policy.h"
#include <stdlib.h>
CL_INLINE void happen(struct cl_flow_state *flow, const u32 *p, const struct cl_hop *hop)
{
	%s
}
CL_POLICY(mine, 1, 0);
"""
# What a policy does, and what is output of it.
FAULTS = {
    "null": ("flow->own[0] = *(u64 *)0;", "was killed by SIGSEGV: the policy reads or writes past"),
    "zero": ("flow->rate_bps /= p[0];", "was killed by SIGFPE: the policy divides by 0"),
    "abort": ("abort();", "was killed by SIGABRT: the policy ends the trial's process itself"),
    "leave": ("exit(0);", "ended with 0"),
}


def write(folder, levels="dcqcn: dcqcn", size="500KB"):
    path = folder / "crash.yml"
    path.write_text(CAMPAIGN.format(levels=levels, size=size))
    return path


@pytest.fixture
def without_bpf(tmp_path, monkeypatch):
    """A machine with a C compiler and none for BPF, where no policy was compiled before."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("cc", "as", "ld"):
        (programs / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(native_policy, "_loaded", {})


def closloop(*arguments, cwd):
    """Run closloop in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def events(folder, name):
    journal = read_journal(folder / "runs" / "crash" / "journal.jsonl")
    return {entry["trial"]: entry for entry in journal if entry["event"] == name}


@pytest.mark.slow
@pytest.mark.usefixtures("without_bpf")
def test_a_policy_that_ends_its_process_fails_its_trial_only(tmp_path):
    for name, (body, _) in FAULTS.items():
        (tmp_path / f"{name}.c").write_text(POLICY % body)
    levels = [f"{name}: {{program: {name}.c, parameters: [0]}}" for name in FAULTS]
    write(tmp_path, ", ".join(["dcqcn: dcqcn", *levels]))
    ended = closloop("run", "crash.yml", "--no-report", cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    (seed,) = {trial.seed for trial in load_campaign(tmp_path / "crash.yml").trials}
    assert list(events(tmp_path, "trial-finished")) == [
        path.name for path in (tmp_path / "runs" / "crash").glob("secn1-*")
    ]
    failed = events(tmp_path, "trial-failed")
    assert len(failed) == len(FAULTS)
    for trial, entry in failed.items():
        assert f"the trial's process {FAULTS[trial.split('-')[1]][1]}" in entry["message"]
        assert str(seed) in entry["remedy"]
        assert f"{trial} FAILED: {entry['message']}" in ended.stderr
    again = closloop("run", "crash.yml", "--no-report", "--json", cwd=tmp_path)
    again = json.loads(again.stdout)
    assert (again["finished_earlier"], set(again["failed"])) == (1, set(failed))


@pytest.mark.usefixtures("without_bpf")
def test_what_is_no_policy_is_refused_before_a_trial(tmp_path):
    (tmp_path / "none.c").write_text("int x;\n")
    (tmp_path / "mine.c").write_text(POLICY % "flow->rate_bps = p[0];")
    for program, words in (
        ("none.c", "it is not a policy"),
        # libraries are compiled for one version and one machine: a campaign names the source
        ("mine.so", "name the .c file"),
        ("mine.c", "takes 1 parameters, and 2 are given"),
    ):
        (tmp_path / "mine.so").write_bytes(b"")
        numbers = [1, 2] if program == "mine.c" else [1]
        write(tmp_path, f"mine: {{program: {program}, parameters: {numbers}}}")
        for verb in ("plan", "run"):
            ended = closloop_in_process(verb, "crash.yml", cwd=tmp_path)
            assert ended.returncode == 2
            assert ended.stderr.startswith("crash.yml:4: ")
            assert words in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("without_bpf")
def test_a_cached_policy_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.c").write_text(POLICY % "flow->rate_bps = p[0];")
    write(tmp_path, "mine: {program: mine.c, parameters: [1]}")
    assert closloop("plan", "crash.yml", cwd=tmp_path).returncode == 0
    (library,) = (
        path
        for path in (tmp_path / "cache/closloop/engine").glob("*/library.so")
        if b"cl_own_abi" in path.read_bytes()
    )
    other = "unsigned cl_own_abi[2] = {9, 8}; int cl_own_policy[6];"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(command, input=other.encode(), check=True)
    ended = closloop("run", "crash.yml", cwd=tmp_path)
    assert ended.returncode == 2
    assert "compiled for version 9 of the packet engine's policies" in ended.stderr
    assert f"remove {library.parent}" in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_worker_that_the_kernel_kills_is_run_again_by_the_same_command(tmp_path):
    write(tmp_path, "dcqcn: dcqcn, fixed: fixed", size="20MB")
    text = (tmp_path / "crash.yml").read_text().replace("drain: 100ms", "drain: 800ms")
    (tmp_path / "crash.yml").write_text(text)
    command = [sys.executable, "-c", PROGRAM, "run", "crash.yml", "--no-report", "--jobs", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end, journal = time.monotonic() + 60, tmp_path / "runs" / "crash" / "journal.jsonl"
    while not (journal.exists() and "trial-started" in journal.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    while not (workers := children.read_text().split()):
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(int(workers[0]), signal.SIGKILL)
    process.communicate()
    assert process.returncode == 1
    ((failed, why),) = events(tmp_path, "trial-failed").items()
    assert why["message"] == "the trial's process was killed by SIGKILL"
    assert "if memory was short, run fewer trials" in why["remedy"]
    (finished,) = events(tmp_path, "trial-finished")
    assert failed != finished
    again = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True)
    output = json.loads(again.stdout)
    assert (output["finished_earlier"], output["finished"], output["failed"]) == (1, 1, {})


# Room for so little more that there is no list of packets; that a buffer fills it.
@pytest.mark.parametrize(
    ("more_bytes", "words"),
    [
        (1 << 20, "no memory for so large a fabric"),
        (12 << 20, "no memory for so many packets on their way"),
    ],
)
def test_an_engine_without_memory_fails_its_trial_and_says_so(tmp_path, more_bytes, words):
    path = write(tmp_path, "fixed: fixed", size="170MB")
    (tmp_path / "deep.yml").write_text(
        "{kind: single-switch, name: deep, mtu: 1500B, hosts: 7, buffer: 1GB, "
        "host_link: {rate: 100Gbps, delay: 1us}}"
    )
    path.write_text(path.read_text().replace("rlcc-7", "deep.yml"))
    campaign = load_campaign(path)
    (trial,) = campaign.trials

    def limited(job, backend, pipe, parent):
        backend.engine_facts()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        work(job, backend, pipe, parent)

    pool = ProcessPool(ProcessBackend(), limited)
    try:
        testbed = campaign.testbeds[trial.testbed]
        pool.start(Job(trial, testbed, tmp_path / "trial", tmp_path / "work"))
        while len(pool):
            messages = list(pool.messages(60))
        (_, failure) = messages[-1]
    finally:
        pool.close()
    assert isinstance(failure, Failed)
    assert words in failure.problems[0].what, failure
    assert "--jobs" in failure.problems[0].remedy
    assert not (tmp_path / "trial").exists()
