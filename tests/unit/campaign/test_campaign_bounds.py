"""How large a campaign is, said before anything of it is made; and what is refused as too large."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inventory.files import load_testbed
from inventory.generators import Cable, GeneratorError, leaf_spine
from orchestration.campaign.bounds import read_bounds
from orchestration.campaign.expand import load_campaign
from orchestration.campaign.plan import make_plan
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.pattern import PatternSpec, Streams
from orchestration.run import executors as room
from orchestration.run.executors import THIS_MACHINE
from traffic.patterns import incast
from traffic.patterns.alternating import AlternatingSpec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.message_mix import MessageMixSpec
from traffic.patterns.poisson import PoissonSpec
from traffic.schedule import make_flows

FILE = """
campaign: test
testbed: graphcc
backend: fluid
tuners: [secn1, secn2]
traffic:
  - PATTERN
duration: 10ms
repeats: 3
"""
POISSON = "{kind: poisson, workload: WebSearch, load: 0.6}"
LIMIT_BYTES = 3 << 30


def written(tmp_path: Path, pattern: str = POISSON, more: str = "", **changes: str) -> Path:
    path = tmp_path / "c.yml"
    text = FILE.replace("PATTERN", pattern) + more
    for key, value in changes.items():
        before = next(line for line in text.splitlines() if line.startswith(f"{key}:"))
        text = text.replace(before, f"{key}: {value}")
    path.write_text(text, encoding="utf-8")
    return path


def ask(verb: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program with little memory: what makes things in proportion ends without any."""
    code = "from orchestration.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, verb, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
    )


FOUR = "".join(
    f"  f{n}: [{', '.join(f'0.{100 + level}' for level in range(40))}]\n" for n in range(4)
)
MANY = ", ".join(f"{{kind: poisson, workload: WebSearch, load: $f{n}}}" for n in range(4))
# Numbers that a file may have, and what is said of them.
TOO_LARGE = {
    "duration": ({"duration": "36000s"}, "", POISSON, "c.yml:8: duration 36000s makes about 946,"),
    "repeats": ({"repeats": "1000000000"}, "", POISSON, "c.yml:9: 1,000,000,000 repeats of 2 "),
    "adaptive": ({"repeats": "{until: 3%, most: 1000000000}"}, "", POISSON, "2,000,000,000 trials"),
    "sample": ({"duration": "1s"}, "sample_period: 1ns\n", POISSON, "c.yml:10: sample_period 1ns "),
    "flow samples": (
        {"backend": "emulated"},
        "sample_period: 1us\nflow_sample_period: 1us\nhost: {congestion_control: dcqcn}\n",
        "{kind: message-mix, load: 1.0, sizes: [1KB]}",
        "c.yml:11: flow_sample_period 1us makes 7,500,000,000 readings of about 750,000 flows",
    ),
    "incast": ({}, "", "{kind: incast, fan_in: 16, size: 1B, period: 1ns}", "period 1ns makes 160"),
    "phase": (
        {"duration": "1s"},
        "",
        "{kind: alternating, receiver: h1, few: 2, many: 12, size: 500KB, phase: 1ns, load: 0.9,"
        " short: 5KB, short_load: 0.02}",
        "phase 1ns makes about",
    ),
    "mix": ({}, "", "{kind: message-mix, load: 1.0, sizes: [1B]}", "makes about 750,000,000 flows"),
    "levels": ({}, f"factors:\n{FOUR}", POISSON.replace("0.6", "$f0"), "trials, more than"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_no_machine_ends_is_bounded_and_refused(name: str, tmp_path: Path) -> None:
    changes, more, pattern, message = TOO_LARGE[name]
    if name == "levels":
        pattern = f"{MANY[: MANY.index(', {kind')]}\n  - " + "\n  - ".join(
            f"{{kind: poisson, workload: WebSearch, load: $f{n}}}" for n in range(1, 4)
        )
    file = written(tmp_path, pattern, more, **changes)
    bounds = read_bounds(file)
    assert bounds.problems
    assert not bounds.planned
    assert message in str(InputError(bounds.problems))
    assert all(problem.remedy for problem in bounds.problems)
    with pytest.raises(InputError) as error:
        load_campaign(file)
    assert error.value.problems == bounds.problems


@pytest.mark.parametrize("name", ["duration", "repeats"])
def test_plan_prints_the_bounds_and_ends(name: str, tmp_path: Path) -> None:
    changes, more, pattern, message = TOO_LARGE[name]
    done = ask("plan", written(tmp_path, pattern, more, **changes), "--json")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    found = json.loads(done.stdout)["bounds"]
    assert found["possible"] is False
    assert found["trials"] == (6 if name == "duration" else 2_000_000_000)
    assert found["flows_per_trial"] == (946_676_406 if name == "duration" else 263)
    assert min(found["memory_bytes"], found["disk_bytes"], 1e4 * found["wall_s"]) > 1e10


def test_a_campaign_that_is_large_and_legal_is_bounded_not_made(tmp_path: Path) -> None:
    done = ask("plan", written(tmp_path, repeats="100000"))
    assert done.returncode == 0, done.stderr
    assert "at most 200,000 trials under 1 conditions; a trial has up to about 263 " in done.stdout
    assert "to plan each trial would take" in done.stdout


def test_bounds_are_what_a_plan_finds(tmp_path: Path) -> None:
    factors = "factors:\n  load: [0.1, 0.2, 0.5]\n  sample: [20us, 10us, 200us]\n"
    file = written(tmp_path, POISSON.replace("0.6", "$load"), f"sample_period: $sample\n{factors}")
    bounds, made = read_bounds(file), make_plan(load_campaign(file), 1, tmp_path)
    assert bounds.planned
    assert (bounds.conditions, bounds.trials) == (9, len(made.trials))
    assert bounds.flows == pytest.approx(max(one.flows for one in made.trials), abs=1)
    queues = len(load_testbed("graphcc").queues)
    assert bounds.readings == 1_000 * queues
    assert bounds.wall_s == pytest.approx(54 * max(one.wall_s for one in made.trials), rel=0.2)


def test_the_largest_levels_are_found_among_many(tmp_path: Path) -> None:
    loads = ", ".join(f"0.{level}" for level in range(100, 150))
    factors = f"factors:\n  load: [{loads}]\n  duration: [10ms, 30ms, 20ms]\n"
    file = written(tmp_path, POISSON.replace("0.6", "$load"), factors, duration="$duration")
    load = 0.149 * sum(map(load_testbed("graphcc").host_rate_bps, load_testbed("graphcc").hosts))
    spec = PoissonSpec("WebSearch", 0.149, 0, 30_000_000)
    assert spec.expected(load_testbed("graphcc")).size_bytes == pytest.approx(load / 8 * 0.03)
    assert read_bounds(file).flows == round(spec.expected(load_testbed("graphcc")).flows)


def test_wrong_files_are_refused_with_their_lines(tmp_path: Path) -> None:
    file = written(tmp_path, POISSON.replace("WebSearch", "Nowhere"), repeats="1000000000")
    with pytest.raises(InputError, match=r"(?s)c.yml:7: .*Nowhere.*c.yml:9: 1,000,000,000 repeats"):
        read_bounds(file)


@pytest.mark.parametrize(
    "spec",
    [
        PoissonSpec("WebSearch", 0.6, 0, 20_000_000, draw="strata"),
        MessageMixSpec((1_000, 20_000), 0.3, 0, 5_000_000, receiver="h3", draw="strata"),
        IncastSpec(7, 64_000, 300_000, 100_000, 5_000_000),
        AlternatingSpec("h1", 2, 12, 500_000, 1_000_000, 0.9, 0, 5_000, 0.02, 0, 2_000_000_000),
    ],
    ids=lambda spec: spec.kind,
)
def test_what_is_expected_is_what_is_drawn(spec: PatternSpec) -> None:
    testbed = load_testbed("graphcc")
    flows = make_flows(spec, testbed, Streams.spawn(1, 0))
    found = spec.expected(testbed)
    assert len(flows.start_ns) == pytest.approx(found.flows, rel=0.03, abs=1)
    assert flows.size_bytes.sum() == pytest.approx(found.size_bytes, rel=0.1)


def test_incasts_are_drawn_in_parts_and_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, testbed = IncastSpec(5, 1_000, 100, 0, 100_000), load_testbed("graphcc")
    whole = make_flows(spec, testbed, Streams.spawn(1, 0))
    monkeypatch.setattr(incast, "_DRAWS_AT_ONCE", 240)
    parts = make_flows(spec, testbed, Streams.spawn(1, 0))
    for name in ("start_ns", "src", "dst", "size_bytes"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_what_does_not_fit_this_machine_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trial, *_) = load_campaign(written(tmp_path, more="sample_period: 1us\n")).trials
    testbed = load_testbed("graphcc")
    each = room.needed_bytes(trial, testbed)
    assert each == pytest.approx(10_000 * len(testbed.queues) * 100 + 263 * 150, rel=0.01)

    class Any:
        def check(self, *_: object) -> None:
            pass

    monkeypatch.setattr(room, "available_memory_bytes", lambda: 3 * each)
    THIS_MACHINE.check(Any(), testbed, 8, [trial] * 3)  # type: ignore[arg-type]
    with pytest.raises(NotReadyError, match=r"4 trials side by side.*\n  -> use --jobs 3"):
        THIS_MACHINE.check(Any(), testbed, 4, [trial] * 4)  # type: ignore[arg-type]
    monkeypatch.setattr(room, "available_memory_bytes", lambda: each - 1)
    with pytest.raises(NotReadyError, match=r"or more, and .* are available\n  -> make trials sho"):
        THIS_MACHINE.check(Any(), testbed, 8, [trial])  # type: ignore[arg-type]


def test_a_fabric_of_a_billion_cables_is_not_made() -> None:
    cable = Cable(10**9, 1_000)
    with pytest.raises(GeneratorError, match="1,074,790,400 cables, more than 200,000"):
        leaf_spine(
            leaves=1024,
            spines=1024,
            hosts_per_leaf=1024,
            host_cable=cable,
            uplink_cable=cable,
            uplinks_per_spine=1024,
        )
