"""The plan: traffic exactly, wall time from earlier trials, and the verb that prints it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from inventory.files import load_testbed
from inventory.routing import PathTable
from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.campaign.plan import PacketHops, make_plan, packet_hops
from orchestration.cli.plan import plan
from orchestration.core.capabilities import mode_of
from orchestration.core.errors import InputError
from orchestration.core.roce import RoceSpec
from orchestration.core.trial import CLOSLOOP, LINUX, TCP, HostSpec, TrialSpec
from traffic.schedule import make_schedule

TEXT = """
campaign: test
testbed: graphcc
backend: fluid
tuners: [secn1, secn2]
traffic:
  - {kind: poisson, workload: WebSearch, load: 0.6}
duration: 10ms
repeats: 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.yml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def campaign(file: Path) -> Campaign:
    return load_campaign(file)


def finished(runs: Path, trial: TrialSpec, wall_s: object, folder: str = "") -> None:
    path = runs / "c" / (folder or trial.id)
    path.mkdir(parents=True)
    about = {"spec": trial.to_json(), "facts": {"wall_s": wall_s}}
    (path / "trial.json").write_text(json.dumps(about), encoding="utf-8")


def test_packet_hops_are_packets_times_links_acknowledgements_included(tmp_path: Path) -> None:
    poisson = "  - {kind: poisson, workload: WebSearch, load: 0.6}\n"
    flows = (
        "  - {kind: flow, src: h1, dst: h2, size: 1MB}\n"  # below one leaf: 2 links
        "  - {kind: flow, src: h1, dst: h24, size: 1448B}\n"  # by a spine: 4 links
        "  - {kind: flow, src: h24, dst: h1, size: 1449B}\n"
    )
    path = tmp_path / "c.yml"
    path.write_text(TEXT.replace(poisson, flows), encoding="utf-8")
    testbed = load_testbed("graphcc")
    trial = load_campaign(path).trials[0]
    schedule = make_schedule(trial, testbed)

    def hops(trial: TrialSpec, acks: float) -> PacketHops:
        return packet_hops(trial, schedule, testbed, PathTable(testbed), acks)

    assert testbed.mss_bytes == 1448
    assert hops(trial, 0.0) == PacketHops(691 * 2 + 1 * 4 + 2 * 4, 0)
    assert hops(trial, 0.5) == PacketHops((691 * 2 + 1 * 4 + 2 * 4) * 3 // 2, 0)
    # 1024 bytes a packet, and one acknowledgement for 16
    host = HostSpec("dcqcn", roce=RoceSpec())
    roce = dataclasses.replace(trial, backend="emulated", fabric=CLOSLOOP, host=host)
    assert hops(roce, 0.5) == PacketHops(0, round((977 * 2 + 2 * 4 + 2 * 4) * 17 / 16))
    lone = (dataclasses.replace(trial.traffic[0], congestion_control="cubic"), *trial.traffic[1:])
    assert hops(dataclasses.replace(roce, traffic=lone), 0.5) == PacketHops(691 * 3, 17)
    tcp = dataclasses.replace(roce, host=TCP)
    slow = dataclasses.replace(tcp, fabric=LINUX)
    took_s = [hops(item, 0.5).wall_s(mode_of(item).pace) for item in (roce, tcp, slow)]
    assert took_s == sorted(took_s)


def test_a_plan_has_the_traffic_that_will_be_sent(campaign: Campaign, tmp_path: Path) -> None:
    made = make_plan(campaign, 2, tmp_path)
    assert [planned.trial for planned in made.trials] == list(campaign.trials)
    testbed = load_testbed("graphcc")
    for planned in made.trials:
        schedule = make_schedule(planned.trial, testbed)
        assert planned.flows == len(schedule)
        assert planned.offered_bytes == int(np.sum(schedule.size_bytes))
        assert planned.latest_ns == planned.trial.duration_ns + planned.trial.drain_ns
        pace = mode_of(planned.trial).pace
        expected_s = pace.boot_s + planned.packet_hops / pace.tcp_hops_per_s
        assert planned.wall_s == pytest.approx(expected_s)
    assert made.disk_bytes == sum(planned.disk_bytes for planned in made.trials)


def test_jobs_share_the_time_but_no_trial_is_split(campaign: Campaign, tmp_path: Path) -> None:
    one, two, many = (make_plan(campaign, jobs, tmp_path) for jobs in (1, 2, 1000))
    assert one.wall_s == pytest.approx(sum(planned.wall_s for planned in one.trials))
    assert two.wall_s == pytest.approx(one.wall_s / 2)
    assert many.wall_s == max(planned.wall_s for planned in one.trials)


def test_earlier_trials_correct_the_estimate(campaign: Campaign, tmp_path: Path) -> None:
    before = make_plan(campaign, 1, tmp_path)
    runs = tmp_path / "runs"
    for planned in before.trials[:2]:
        finished(runs, planned.trial, 3 * planned.wall_s)
    after = make_plan(campaign, 1, runs)
    assert after.earlier == 2
    assert after.wall_s == pytest.approx(3 * before.wall_s)


def test_what_cannot_correct_the_estimate_is_passed_over(
    campaign: Campaign, file: Path, tmp_path: Path
) -> None:
    before = make_plan(campaign, 1, tmp_path)
    runs = tmp_path / "runs"
    trial = campaign.trials[0]
    finished(runs, load_campaign(file, backend="emulated").trials[0], 100.0)
    finished(runs, trial, 100.0, ".unfinished.partial")
    finished(runs, trial, "long", "not-a-number")
    finished(runs, trial, None, "no-time")
    finished(runs, TrialSpec(**{**vars(trial), "testbed": "gone"}), 100.0)
    (runs / "c" / "broken").mkdir()
    (runs / "c" / "broken" / "trial.json").write_text("{", encoding="utf-8")
    assert make_plan(campaign, 1, runs) == before


def run_plan(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(plan)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_plan_prints_cells_total_and_order(file: Path, tmp_path: Path) -> None:
    text = run_plan(str(file), "--out", str(tmp_path), "--jobs", "2")
    for expected in ("secn1", "secn2", "graphcc on fluid", "6 trials, 2 side by side", "repeat 3:"):
        assert expected in text
    assert [path.name for path in tmp_path.iterdir()] == ["c.yml"]


@pytest.mark.parametrize(
    ("fields", "sentence", "baseline"),
    [
        (
            "",
            "compares tuners: secn2 with secn1, judged by mean slowdown, which suits the traffic",
            "secn1",
        ),
        (
            "compare: min_rto\njudge: fct_mean\nfactors: {host.min_rto: [5ms, 1ms, 2ms]}\n",
            "compares host.min_rto: 1ms, 2ms with 5ms, judged by mean FCT\n",
            "5ms",
        ),
        (
            "factors: {host.min_rto: [5ms, 1ms]}\n",
            "nothing is compared: the only level of tuners is secn1. To compare the levels of a "
            "factor, write compare: host.min_rto",
            "secn1",
        ),
    ],
)
def test_plan_says_what_is_compared_or_how_to(
    file: Path, tmp_path: Path, fields: str, sentence: str, baseline: str
) -> None:
    text = file.read_text(encoding="utf-8")
    if fields:
        text = text.replace("tuners: [secn1, secn2]\n", "")
    file.write_text(text + fields, encoding="utf-8")
    assert sentence in run_plan(str(file), "--out", str(tmp_path))
    found = json.loads(run_plan(str(file), "--json", "--out", str(tmp_path)))["question"]
    assert found["baseline"] == found["arms"][0] == baseline


def test_plan_as_json_has_the_trials_in_order(file: Path, tmp_path: Path) -> None:
    text = run_plan(
        str(file), "--on", "emulated", "--repeats", "2", "--json", "--out", str(tmp_path)
    )
    found = json.loads(text)
    trials = load_campaign(file, backend="emulated", repeats=2).trials
    assert [trial["id"] for trial in found["trials"]] == [trial.id for trial in trials]
    assert found["backend"] == "emulated"
    assert found["wall_s"] > 0


def test_a_wrong_file_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yml"
    file.write_text("campaign: wrong\n", encoding="utf-8")
    with pytest.raises(InputError, match="missing field 'duration'"):
        run_plan(str(file))
