"""The study of reordering in examples/, made small: its campaigns load, and its table is made."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.campaign.expand import load_campaign

STUDY = Path(__file__).resolve().parents[2] / "examples" / "reordering"
CODE = "from orchestration.cli.main import main; main()"


def closloop(*arguments, given=""):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, arguments)],
        input=given, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_stacks_see_the_same_flows_over_the_same_paths():
    linux, ns3 = (load_campaign(STUDY / name) for name in ("linux.yml", "ns3.yml"))
    of_linux = {(t.seed, t.traffic, t.load_balancing, t.duration_ns) for t in linux.trials}
    assert of_linux == {(t.seed, t.traffic, t.load_balancing, t.duration_ns) for t in ns3.trials}
    assert len(linux.trials) == 2 * len(ns3.trials)
    assert {trial.host.loss_detection for trial in linux.trials} == {"rack", "duplicate-acks"}


@pytest.mark.ns3
def test_the_table_tells_reordering_and_what_it_costs(tmp_path):
    text = (STUDY / "ns3.yml").read_text().replace("duration: 40ms", "duration: 6ms")
    (tmp_path / "ns3.yml").write_text(text.replace("repeats: 6", "repeats: 2"))
    (tmp_path / "clos.yml").write_text((STUDY / "clos.yml").read_text())
    out = tmp_path / "runs"
    closloop("run", tmp_path / "ns3.yml", "--out", out, "--json")
    said = closloop("sql", out, "-", "--json", given=(STUDY / "table.sql").read_text())
    rows = {row["balance"]: row for row in json.loads(said)}
    assert set(rows) == {"ecmp", "flowlets-500us", "flowlets-50us", "spray", "spray-drill"}
    assert {(row["tcp"], row["repeats"]) for row in rows.values()} == {("ns-3", 2)}
    assert rows["ecmp"]["% out of order"] == rows["ecmp"]["change %"] == 0
    assert rows["spray"]["% out of order"] > rows["flowlets-50us"]["% out of order"]
    assert rows["spray"]["% resent"] > 0 == rows["ecmp"]["% resent"]
    assert all(row["mean_slowdown"] >= 1 for row in rows.values())
