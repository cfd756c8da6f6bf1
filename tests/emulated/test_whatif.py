"""A counterfactual of an emulated trial: unchanged, it is its parent to the bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.core.engines import KERNEL, PROCESS

CAMPAIGN = """campaign: old
testbed: rlcc-7
fabric: closloop
{host}
tuners: [secn2, graphcc]
traffic:
  - {{kind: poisson, workload: FB_Hadoop, load: 0.4}}
  - {{kind: incast, fan_in: 6, size: 100KB, period: 500us, receiver: h1}}
repeats: 1
duration: 1ms
drain: 100ms
"""
DCQCN = "host: {congestion_control: dcqcn}"


def closloop(*arguments: str, cwd: Path) -> dict:
    program = "from orchestration.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--json"],
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "host"), [(KERNEL, ""), (KERNEL, DCQCN), (PROCESS, DCQCN)])
def test_unchanged_it_is_its_parent_to_the_bit(tmp_path, engine, host):
    (tmp_path / "old.yml").write_text(CAMPAIGN.format(host=host), encoding="utf-8")
    closloop("run", "old.yml", "--in", engine, cwd=tmp_path)
    asked = [
        ("secn2", "0ns", "recorded", 2),
        ("graphcc", "500us", "recorded", 800),  # it marks early by itself
        ("graphcc", "500us", "tuner", 800),
    ]
    for tuner, at, then, kmax_kb in asked:
        decision = ("--trial", f"{tuner}-*", "--at", at, "--queue", "switch1:eth0")
        low, high = f"kmin={kmax_kb // 2}KB", f"kmax={kmax_kb}KB"
        change = ("--set", low, "--set", high, "--set", "pmax=1", "--then", then)
        told = closloop("whatif", "runs/old", *decision, *change, "--verify", cwd=tmp_path)
        assert (told["same_as_parent"], told["differing"]) == (True, [])
        assert told["valid"]
        assert told["decision"]["is"]["kmax_bytes"] == kmax_kb * 1_000
        assert told["flows"]["changed"] > 0, (tuner, then)
        before, after = told["queue"]["before"], told["queue"]["after"]
        more = after["marked_packets"] - before["marked_packets"]
        assert more > 0 if kmax_kb == 2 else more < 0
