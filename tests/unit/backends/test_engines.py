"""Which engine emulated trials run in, and why; a name that is given is respected or refused."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.backends.emulated import memory
from orchestration.backends.emulated.engines import (
    chosen_engine,
    needs_kernel,
    packet_engine_version,
)
from orchestration.backends.emulated.memory import process_memory_bytes, trial_memory_bytes
from orchestration.backends.emulated.process_backend import ProcessBackend
from orchestration.campaign import controls
from orchestration.campaign.expand import load_campaign
from orchestration.core.capabilities import capabilities, pace_of
from orchestration.core.congestion import PROGRAM, roce_controls
from orchestration.core.engines import KERNEL, PROCESS, EngineChoice
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import HostSpec
from tuners.base import BaseTuner

FIELDS = {
    "campaign": "engines",
    "testbed": "rlcc-7",
    "backend": "emulated",
    "host": "{congestion_control: dcqcn}",
    "tuners": "[secn1]",
    "traffic": "[{kind: incast, fan_in: 3, size: 64KB, period: 500us}]",
    "repeats": "1",
    "duration": "1ms",
}
LOSSLESS = """\
name: lossless
kind: leaf-spine
leaves: 2
spines: 2
hosts_per_leaf: 2
host_link: {rate: 25Gbps, delay: 1us}
uplink: {rate: 25Gbps, delay: 1us}
mtu: 1500B
switch: {buffer: 1MB, pfc: [3]}
"""
CLASSES = """\
name: classes
kind: leaf-spine
leaves: 2
spines: 2
hosts_per_leaf: 2
host_link: {rate: 25Gbps, delay: 1us}
uplink: {rate: 25Gbps, delay: 1us}
mtu: 1500B
buffer: 1MB
classes: [{name: rdma, weight: 1}, {name: tcp, weight: 1, congestion_control: cubic}]
"""


@pytest.fixture
def trials(tmp_path, monkeypatch):
    """Return a function that makes a campaign's trials and testbeds; fields of the file differ."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("lossless.yml", LOSSLESS), ("classes.yml", CLASSES)):
        (tmp_path / name).write_text(text)

    def make(**fields):
        lines = [f"{name}: {value}" for name, value in {**FIELDS, **fields}.items()]
        (tmp_path / "c.yml").write_text("\n".join(lines))
        made = load_campaign("c.yml")
        return made.trials, made.testbeds

    return make


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"host": "{congestion_control: fixed}"},
        {"testbed": "lossless.yml", "flow_sample_period": "100us"},
        {"traffic": "[{kind: concurrent, flows: 2}]", "decision_latency": "5us"},
        {"testbed": "classes.yml", "fabric": "{kind: closloop, marks: departures}"},
        {"tuners": "[acc, graphcc, amt, {name: random, of: acc}]"},
    ],
)
def test_roce_flows_alone_run_in_the_process(trials, fields):
    if fields.get("testbed") == "classes.yml":
        fields["traffic"] = FIELDS["traffic"].replace("size", "class: rdma, size")
    assert chosen_engine(*trials(**fields)) == EngineChoice(PROCESS, "RoCE flows only")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"host": "{congestion_control: dctcp}"}, "flows are Linux TCP (dctcp)"),
        (
            {
                "testbed": "classes.yml",
                "traffic": FIELDS["traffic"].replace("size", "class: tcp, size"),
            },
            "flows are Linux TCP (cubic)",
        ),
        (
            {"host": "{congestion_control: dctcp}", "fabric": "linux"},
            "the fabric is Linux' own",
        ),
        (
            {"host": "{congestion_control: swift}"},
            "the congestion control swift is in the kernel only",
        ),
        (
            {"host": "{congestion_control: rlcc}"},
            "the congestion control rlcc needs round-trip probes",
        ),
        (
            {"host": "{congestion_control: hpcc}"},
            "the congestion control hpcc needs telemetry in packets",
        ),
        (
            {"host": "{congestion_control: dcqcn, roce: {recovery: selective-repeat}}"},
            "lost packets are sent again alone",
        ),
        (
            {"host": "{congestion_control: dcqcn, roce: {rtt_probe_interval: 10us}}"},
            "NICs measure round trips with probes",
        ),
        (
            {"host": "{congestion_control: dcqcn, roce: {decision_latency: 2us}}"},
            "NICs decide with a latency",
        ),
        ({"testbed": "graphcc", "load_balancing": "spray"}, "switches choose paths by spray"),
        (
            {
                "testbed": "lossless.yml",
                "faults": "[{down: 100us, convergence: 1us, links: [leaf1-spine1]}]",
            },
            "links fail",
        ),
        (
            {"tuners": "[pet]"},
            "tuner 'pet' observes incast_degree, which needs a flow table",
        ),
    ],
)
def test_what_the_packet_engine_lacks_runs_in_the_kernel(trials, fields, reason):
    made = trials(**fields)
    assert chosen_engine(*made) == EngineChoice(KERNEL, reason)
    with pytest.raises(InputError, match="leave it out, or use --in kernel") as refused:
        chosen_engine(*made, requested=PROCESS)
    (problem,) = refused.value.problems
    assert (problem.where, problem.what) == (
        "--in process",
        f"these trials need the kernel: {reason}",
    )


@pytest.mark.parametrize(("file", "reason"), [("mine.c", ""), ("mine.o", "mine.o is compiled")])
def test_a_policy_runs_in_the_process_if_its_source_is_given(trials, file, reason):
    (trial,), testbeds = trials()
    host = HostSpec(PROGRAM, roce=RoceSpec(control=PROGRAM, program=f"/here/{file}"))
    found = needs_kernel(dataclasses.replace(trial, host=host), testbeds[trial.testbed])
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_without_clang_a_policy_is_read_as_the_process_loads_it(trials, monkeypatch):
    def no_clang(path):
        raise NotReadyError("there is no clang", "apt-get install clang")

    monkeypatch.setattr(controls, "policy_object", no_clang)
    head = "CL_INLINE void happen(struct cl_flow_state *f, const u32 *p, const struct cl_hop *h)"
    policy = f'#include "policy.h"\n{head}\n{{\n}}\nCL_POLICY(mine, 1, %s);\n'
    mine = "{congestion_control: {program: mine.c, parameters: [40]}}"
    Path("mine.c").write_text(policy % 0)
    assert chosen_engine(*trials(host=mine)).engine == PROCESS
    Path("mine.c").write_text(policy % 1)
    assert "telemetry" in chosen_engine(*trials(host=mine)).reason
    Path("mine.c").write_text("int happen;")
    with pytest.raises(InputError, match=r"c.yml:4: mine.c: the compiler refuses it"):
        trials(host=mine)


def test_a_cable_without_delay_needs_the_kernel(trials):
    (trial,), testbeds = trials()
    bed = testbeds[trial.testbed]
    links = (dataclasses.replace(bed.links[0], delay_ns=0), *bed.links[1:])
    assert needs_kernel(trial, dataclasses.replace(bed, links=links)) == "a cable has no delay"


def test_all_trials_run_in_one_engine_and_the_reason_names_the_cell_that_decides(trials):
    made = trials(host="{congestion_control: $cc}", factors="{cc: [dcqcn, dctcp]}")
    reason = "flows are Linux TCP (dctcp), in cell tuner secn1, cc dctcp"
    assert chosen_engine(*made) == EngineChoice(KERNEL, reason)


def test_the_kernel_can_always_be_asked_for_and_real_time_has_no_engine(trials):
    made = trials()
    assert chosen_engine(*made, requested=KERNEL) == (KERNEL, "as --in kernel says")
    tcp = {"host": "{congestion_control: dctcp}", "clock": "real"}
    assert chosen_engine(*trials(**tcp)) == EngineChoice()
    assert chosen_engine(*trials(**tcp), requested=KERNEL) == EngineChoice()
    with pytest.raises(InputError, match="no engine is called 'guest'"):
        chosen_engine(*made, requested="guest")


def test_the_tuner_that_decides_counts_and_not_that_of_the_trial(trials):
    class Agents(BaseTuner):
        observes = ("qlen_bytes", "mice_flows")

    (trial,), testbeds = trials(tuners="[pet]")
    bed = testbeds[trial.testbed]
    assert not needs_kernel(trial, bed, BaseTuner())
    assert needs_kernel(trial, bed, Agents()).endswith("which needs a flow table")


def test_the_process_can_do_a_part_of_what_the_kernel_can(trials):
    own, process = capabilities("emulated").modes[0], capabilities("emulated").in_process
    for name in ("signals", "knobs", "controls", "marks", "policies", "load_balancing"):
        assert set(getattr(process, name)) <= set(getattr(own, name)), name
    assert set(process.nic_controls) <= set(roce_controls())
    (trial,), testbeds = trials()
    assert pace_of(trial, PROCESS).boot_s < pace_of(trial, KERNEL).boot_s
    bed = testbeds[trial.testbed]
    of_process, of_guest = process_memory_bytes(bed, 10, trial), trial_memory_bytes(trial, bed, 10)
    assert of_process < of_guest
    assert process_memory_bytes(bed, 1_000_010, trial) - of_process == 1_024_000_000


def test_a_machine_without_a_compiler_loads_the_engine_of_a_bundle(tmp_path):
    backend = ProcessBackend()
    for name, path in backend.bundle().files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / name)
    load = "from orchestration.datapath.library import load_engine; print(load_engine().about)"
    there = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PATH": "", "CC": ""}
    loaded = subprocess.run(
        [sys.executable, "-c", load], env=there, capture_output=True, text=True, check=True
    )
    assert packet_engine_version() in loaded.stdout
    assert backend.engine_facts()["engine_hash"] == packet_engine_version()


def test_trials_in_the_process_are_refused_where_memory_is_short(trials, monkeypatch):
    (_,), testbeds = trials()
    (bed,) = testbeds.values()
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 3 * process_memory_bytes(bed))
    memory.require_processes(bed, 3)
    with pytest.raises(NotReadyError, match="4 trials of rlcc-7 need 512 MiB of memory"):
        memory.require_processes(bed, 4)
