"""A new knob and a new counter are added in few places: shown by doing it to a copy of the project.

The rest (tables, replays, SQL, InfluxDB's names, metrics, docs) follows from the declarations.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "closloop",
    "collectors",
    "inventory",
    "orchestration",
    "playbooks",
    "traffic",
    "tuners",
)
pytestmark = pytest.mark.slow

MODEL, FLUID = "orchestration/core", "orchestration/backends/fluid/rig.py"
OFFER = "orchestration/backends/fluid/capabilities.py"

CAMPAIGN = """
campaign: throw-away
testbed: graphcc
tuners: [{name: timeouts.py:Timeouts}]
traffic:
  - {kind: incast, fan_in: 4, size: 64KB, period: 1ms}
repeats: 1
duration: 2ms
"""

TUNER = """
from dataclasses import dataclass

import numpy as np

from closloop import KNOBS, BaseTuner, Setup


@dataclass
class Timeouts(BaseTuner):
    start_ns: int = 200_000

    observes = ("tx_bytes",)
    knobs = ("flowlet",)

    def reset(self, testbed, seed):
        self.switches = np.arange(len(testbed.switches))
        return Setup((KNOBS["flowlet"].change(self.switches, self.start_ns),))

    def act(self, observation):
        return (KNOBS["flowlet"].change(self.switches[:1], min(observation.t_ns, 500_000)),)
"""

KNOB = """
FLOWLET = Knob(
    "flowlet",
    "switch",
    (Column("gap_ns", "ns", "idle time before a flow may take another path", maximum=500_000),),
    "the flowlet timeout of a switch",
)

KNOBS: dict[str, Knob] = {
    knob.name: knob for knob in (ECN, DCQCN, FLOWLET_TIMEOUT, FLOWLET)
}
"""


def replace(root: Path, file: str, before: str, after: str) -> str:
    """Edit a file of the copy, and return its name."""
    path = root / file
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{file} has {text.count(before)} times: {before}"
    path.write_text(text.replace(before, after), encoding="utf-8")
    return file


@pytest.fixture
def copy(tmp_path) -> Path:
    root = tmp_path / "copy"
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return root


def closloop(root: Path, *arguments: str, code: int = 0) -> str:
    program = "from orchestration.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=root.parent,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def python(root: Path, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root.parent,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_tuner_of_a_new_knob_takes_at_most_four_files(copy):
    declared = (
        "KNOBS: dict[str, Knob] = {knob.name: knob for knob in (ECN, DCQCN, FLOWLET_TIMEOUT)}\n"
    )
    touched = {
        replace(copy, f"{MODEL}/knobs.py", declared, KNOB.lstrip()),
        replace(copy, OFFER, "knobs=(ECN.name,)", 'knobs=(ECN.name, "flowlet")'),
        replace(
            copy,
            FLUID,
            "self._setters[ECN.name] = self._set_thresholds",
            'self._setters |= {ECN.name: self._set_thresholds, "flowlet": lambda change: change}',
        ),
    }
    folder = copy.parent
    (folder / "timeouts.py").write_text(TUNER, encoding="utf-8")
    (folder / "campaign.yml").write_text(CAMPAIGN, encoding="utf-8")
    assert len({*touched, "timeouts.py"}) <= 4

    assert "holds" in closloop(copy, "check-tuner", "timeouts.py:Timeouts")
    assert "lacks" in closloop(copy, "plan", "campaign.yml", "--on", "emulated", code=2)
    closloop(copy, "run", "campaign.yml", "--on", "fluid")
    asked = "select device, gap_ns from actions_flowlet where t_ns = 0 order by device"
    rows = json.loads(closloop(copy, "sql", "runs", asked, "--json"))
    assert [row["gap_ns"] for row in rows] == [200_000] * 6
    later = "select max(gap_ns) as most from actions_flowlet"
    assert json.loads(closloop(copy, "sql", "runs", later, "--json")) == [{"most": 500_000}]
    assert "gap_ns" in closloop(copy, "signals")
    names = python(copy, "from collectors.sinks.lines import MEASUREMENTS; print(*MEASUREMENTS)")
    assert "closloop_action_flowlet" in names.split()

    # the targets are the agents of an environment, and choose within the declared bounds
    program = (
        "import closloop as c; s = c.EnvironmentSettings(knob='flowlet');"
        "e = c.FabricParallelEnv('campaign.yml', 'fluid', settings=s); e.reset();"
        "a = e.agents; print(*a, e.action_space(a[0]).n, e.step(dict.fromkeys(a, 7))[1][a[0]])"
    )
    *agents, actions, reward = python(copy, program).split()
    assert (len(agents), int(actions), 0 <= float(reward) <= 1) == (6, 8, True)

    # a replay sets the same at the same times
    closloop(copy, "replay", "runs/throw-away", "--name", "again", "--out", "runs2", "--no-report")
    tables = [
        closloop(copy, "sql", runs, "select t_ns, device, gap_ns from actions_flowlet")
        for runs in ("runs", "runs2")
    ]
    assert tables[0] == tables[1]


def test_a_new_counter_is_its_declaration_and_a_reader_in_each_backend_that_has_it(copy):
    folder = copy.parent
    (folder / "campaign.yml").write_text(
        CAMPAIGN.replace("{name: timeouts.py:Timeouts}", "secn1"), encoding="utf-8"
    )
    closloop(copy, "run", "campaign.yml", "--on", "fluid", "--out", "before", "--no-report")
    touched = {
        replace(
            copy,
            f"{MODEL}/signals.py",
            '    _queue(\n        "qlen_mean_bytes",',
            '    Signal("sent_twice", "queue", "B", "a counter", cumulative=True, since=2),\n'
            '    _queue(\n        "qlen_mean_bytes",',
        ),
        replace(
            copy,
            FLUID,
            '                "tx_bytes": _whole(network.tx_bytes[queues]),\n',
            '                "tx_bytes": _whole(network.tx_bytes[queues]),\n'
            '                "sent_twice": 2 * _whole(network.tx_bytes[queues]),\n',
        ),
    }
    assert len(touched) == 2
    closloop(copy, "run", "campaign.yml", "--on", "fluid", "--out", "after")
    asked = "select run, sum(tx_bytes) as once, sum(sent_twice) as twice from ports group by run"
    rows = {row["run"]: row for row in json.loads(closloop(copy, "sql", ".", asked, "--json"))}
    assert rows["before/throw-away"]["twice"] is None
    after = {name: int(rows["after/throw-away"][name]) for name in ("once", "twice")}
    assert after["twice"] == 2 * after["once"] > 0
    fields = "from collectors.sinks.lines import PORT; print(*PORT.fields)"
    assert "sent_twice" in python(copy, fields).split()
