"""Campaigns with adaptive repeats, run: rounds, looks, resuming, and how results are read."""

import dataclasses
import json
import os
import signal

import pytest
from typer.testing import CliRunner

import closloop
from orchestration.analysis.comparison.equivalence import Margins
from orchestration.analysis.comparison.result import compare_runs
from orchestration.analysis.sequential import AnalysisPlan
from orchestration.analysis.statistics import t_interval
from orchestration.analysis.summary import summarise
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.cli.main import app
from orchestration.core.errors import InputError, Interrupted, TrialError
from orchestration.core.records import FAILED
from orchestration.papers.results import ComparedTrial, _last_analysis, read_measured_trials
from orchestration.results.interim_analyses import INTERIM_FILE, read_interim_analyses
from orchestration.run.checked import checked
from orchestration.run.folder import read_journal
from orchestration.run.launcher import run_campaign

# Without queues all tuners are alike: after the first look `calm` is done, and `busy` at the most.
CAMPAIGN = """\
campaign: tiny
testbed: rlcc-7
backend: fluid
tuners: [secn1, secn2]
traffic: [$pattern]
factors:
  pattern:
    busy: {kind: poisson, workload: WebSearch, load: 0.6}
    calm: {kind: flow, src: h1, dst: h2, size: 10KB}
repeats: REPEATS
duration: 1ms
drain: 20ms
"""
# It compares another factor, and has no tuners to speak of.
COMPARED = (
    CAMPAIGN.replace("tuners: [secn1, secn2]\n", "compare: min_rto\n")
    .replace("factors:\n", "factors:\n  host.min_rto: [1ms, 5ms]\n")
)  # fmt: skip
# Its arms have tuners of their own.
OWN_TUNERS = CAMPAIGN.replace(
    "tuners: [secn1, secn2]\n",
    "arms: {first: {tuners: [secn1]}, second: {host.min_rto: 5ms, tuners: [secn2]}}\n",
)
ADAPTIVE = "{until: 1%, of: [mean_slowdown], least: 3, most: 8}"


class Listener:
    """Remembers looks, and can interrupt the run after some trials."""

    def __init__(self, interrupt_after=0):
        self.analyses, self.left = [], interrupt_after

    def planned(self, trials, finished, jobs):
        self.analyses.append((trials, finished))

    def started(self, trial):
        pass

    def progressed(self, trial, progress):
        pass

    def finished(self, trial, result):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)

    def failed(self, trial, failure):
        self.finished(trial, failure)

    def on_interim_analysis(self, found, rule, trials, finished):
        self.analyses.append((trials, finished, [item.in_words(rule) for item in found]))

    def tick(self):
        pass


@pytest.fixture
def load(tmp_path):
    def load_text(repeats=ADAPTIVE, text=CAMPAIGN):
        path = tmp_path / "tiny.yml"
        path.write_text(text.replace("REPEATS", repeats))
        return load_campaign(path)

    return load_text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run the campaign once, for those who only read it."""
    folder = tmp_path_factory.mktemp("adaptive")
    (folder / "tiny.yml").write_text(CAMPAIGN.replace("REPEATS", ADAPTIVE))
    run(load_campaign(folder / "tiny.yml"), folder / "runs")
    return folder / "runs"


def run(campaign, out, jobs=2, backend=None, listener=None, **more):
    listener = listener or Listener()
    engine = backend or FluidBackend()
    return run_campaign(checked(campaign), engine, out, jobs, listener, **more), listener


def flows(out):
    """Return the bytes of every finished trial's flows, by its id."""
    found = (out / "tiny").glob("*/flows.parquet")
    return {path.parent.name: path.read_bytes() for path in sorted(found)}


def journal(out, event):
    return [
        entry for entry in read_journal(out / "tiny" / "journal.jsonl") if entry["event"] == event
    ]


def repeats_of(campaign, names):
    """Return how many trials of each condition there are."""
    trials = [trial for trial in campaign.trials if trial.id in names]
    patterns = [trial.cell["pattern"] for trial in trials]
    return {name: patterns.count(name) for name in ("busy", "calm")}


@pytest.mark.slow
def test_conditions_are_repeated_until_they_are_known_or_at_the_most(load, tmp_path):
    campaign = load()
    summary, listener = run(campaign, tmp_path)
    assert repeats_of(campaign, flows(tmp_path)) == {"busy": 16, "calm": 6}
    assert (summary.trials, summary.finished, summary.exit_code) == (22, 22, 0)
    assert [
        (s.label, s.repeats, s.interim_analysis, s.done) for s in summary.condition_statuses
    ] == [
        ("pattern busy", 8, 3, "most"),
        ("pattern calm", 3, 1, "width"),
    ]
    # 12 trials, then two repeats of busy, then three
    assert [item[:2] for item in listener.analyses] == [(12, 0), (16, 0), (22, 0), (22, 0)]
    assert listener.analyses[1][2][1] == (
        "pattern calm: 3 repeats, slowdown_mean known to ±0.0%; within ±1%, done"
    )
    found = read_interim_analyses(tmp_path / "tiny")
    assert (found.rule.of, found.sizes) == (("slowdown_mean",), (3, 5, 8))
    assert found.condition_statuses == summary.condition_statuses
    assert [entry["trials"] for entry in journal(tmp_path, "looked")] == [16, 22, 22]


def test_arms_of_any_factor_are_compared_within_conditions_of_all_others(load, tmp_path):
    campaign = load("{until: 1%, min: 3, max: 4}", COMPARED)
    summary, _ = run(campaign, tmp_path)
    # no flow of a fluid times out, so the arms are alike in both conditions
    assert [(s.label, s.repeats, s.done, dict(s.widths)) for s in summary.condition_statuses] == [
        ("pattern busy", 3, "width", {"slowdown_mean_all": {"5ms": 0.0}}),
        ("pattern calm", 3, "width", {"slowdown_mean_all": {"5ms": 0.0}}),
    ]
    own = load("{until: 1%, min: 3, max: 4}", OWN_TUNERS)
    assert [s.label for s in run(own, tmp_path, fresh=True)[0].condition_statuses] == [
        "pattern busy",
        "pattern calm",
    ]
    judged = load("{until: 1%, min: 3, max: 4}", COMPARED + "judge: [fct_mean, slowdown_p99]\n")
    assert checked(judged).repeats.of == ("fct_mean_ns_all", "slowdown_p99_all")
    assert checked(load("{until: 1%, min: 3, max: 4}")).repeats.of == ("slowdown_mean",)


@pytest.mark.slow
def test_neither_jobs_nor_who_ends_first_changes_what_is_run(load, tmp_path):
    campaign = load()
    for jobs in (1, 2, 5):
        run(campaign, tmp_path / str(jobs), jobs=jobs)
    one, two, five = (tmp_path / name for name in "125")
    assert flows(one) == flows(two) == flows(five)
    analyses = {(out / "tiny" / INTERIM_FILE).read_bytes() for out in (one, two, five)}
    assert len(analyses) == 1
    started = [[e["trial"] for e in journal(out, "trial-started")] for out in (one, two, five)]
    # complete blocks, in the campaign's order
    assert started[0] == started[1] == started[2]
    ids = [trial.id for trial in campaign.trials]
    assert started[0] == sorted(started[0], key=ids.index)


@pytest.mark.slow
def test_trials_are_those_of_a_plain_campaign_with_as_many_repeats(load, tmp_path):
    adaptive = load()
    plain = load("8")
    assert [trial.id for trial in adaptive.trials] == [trial.id for trial in plain.trials]
    run(adaptive, tmp_path)
    before = flows(tmp_path)
    summary, _ = run(plain, tmp_path)
    assert (summary.skipped, summary.finished) == (22, 10)
    assert before.items() <= flows(tmp_path).items()
    # what was looked at stays so: its intervals stay those of a look
    assert {c.interim.of for c in summarise(tmp_path / "tiny").conditions} == {3}


@pytest.mark.slow
def test_a_plain_campaign_goes_on_as_an_adaptive_one(load, tmp_path):
    run(load("4"), tmp_path)
    summary, _ = run(load(), tmp_path)
    assert (summary.skipped, summary.finished) == (8 + 6, 8)
    assert [standing.repeats for standing in summary.condition_statuses] == [8, 3]


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 12, 14])
def test_after_an_interruption_it_goes_on_at_the_right_look(load, runs, tmp_path, after):
    campaign = load()
    with pytest.raises(Interrupted):
        run(campaign, tmp_path, jobs=1, listener=Listener(interrupt_after=after))
    done = len(flows(tmp_path))
    assert after <= done < 22
    summary, _ = run(campaign, tmp_path)
    assert (summary.skipped, summary.finished) == (done, 22 - done)
    assert flows(tmp_path) == flows(runs)
    read = [(out / "tiny" / INTERIM_FILE).read_bytes() for out in (tmp_path, runs)]
    assert read[0] == read[1]


@pytest.mark.slow
def test_the_same_command_runs_nothing_twice(load, tmp_path):
    run(load(), tmp_path)
    summary, listener = run(load(), tmp_path)
    assert (summary.skipped, summary.finished, summary.trials) == (22, 0, 22)
    assert listener.analyses[-1][:2] == (22, 22)


class Failing(FluidBackend):
    """Fails in one repeat of one tuner."""

    def run(self, run):
        if run.trial.tuner.name == "secn2" and run.trial.repeat == 2:
            raise TrialError("lost")
        return super().run(run)


class Invalid(FluidBackend):
    """Loses a flow in one repeat of one tuner."""

    def run(self, run):
        record = super().run(run)
        if run.trial.tuner.name == "secn2" and run.trial.repeat == 2:
            record.flows.status[0], record.flows.end_ns[0] = FAILED, -1
        return record


@pytest.mark.slow
def test_an_invalid_trial_counts_nowhere_and_is_kept(load, tmp_path):
    summary, _ = run(load(), tmp_path, backend=Invalid())
    assert (summary.finished, len(summary.invalid)) == (22, 2)
    look, pairs = AnalysisPlan((3, 5, 8)).at(8), {}
    for condition in summarise(tmp_path / "tiny").conditions:
        arms = [
            {trial.spec.repeat: trial.metrics.scalars["slowdown_mean_all"] for trial in arm.valid}
            for arm in condition.arms
        ]
        common = sorted(set(arms[0]) & set(arms[1]))
        pairs[condition.label] = [(arms[0][n], arms[1][n] - arms[0][n]) for n in common]
    busy = pairs["pattern busy"]
    apart = t_interval([difference for _, difference in busy], look)
    mean = sum(first for first, _ in busy) / len(busy)
    assert len(busy) == 7
    width = summary.condition_statuses[0].widths["slowdown_mean"]["secn2"]
    assert width == pytest.approx((apart.high - apart.low) / 2 / mean)


@pytest.mark.slow
def test_a_pair_whose_trial_failed_is_missing_and_is_run_again_next_time(load, tmp_path):
    summary, _ = run(load(), tmp_path, backend=Failing())
    assert (len(summary.failed), summary.exit_code) == (2, 1)
    calm = summary.condition_statuses[1]
    assert (calm.repeats, calm.done) == (3, "width")  # two pairs of three, without any difference
    again, _ = run(load(), tmp_path)
    assert (again.finished, again.exit_code) == (2, 0)


@pytest.mark.slow
def test_results_that_were_looked_at_otherwise_are_refused(load, tmp_path):
    run(load(), tmp_path)
    with pytest.raises(InputError, match="planned after 3, 5, 8 repeats"):
        run(load("{until: 1%, least: 3, most: 9}"), tmp_path)
    # how precise they have to be is free
    summary, _ = run(load("{until: 90%, least: 3, most: 8}"), tmp_path)
    assert [standing.repeats for standing in summary.condition_statuses] == [3, 3]


def test_a_metric_that_does_not_exist_is_refused_with_its_line(load, tmp_path):
    with pytest.raises(
        InputError, match=r"tiny.yml:10: no metric is called 'slowdown_men'"
    ) as told:
        run(load("{until: 1%, of: [slowdown_men]}"), tmp_path)
    assert "did you mean 'slowdown_mean'?" in str(told.value)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.slow
def test_the_report_reads_each_condition_at_its_look(runs):
    summary = summarise(runs / "tiny")
    analyses = {condition.label: condition.interim for condition in summary.conditions}
    planned = AnalysisPlan((3, 5, 8))
    assert analyses == {"pattern busy": planned.at(8), "pattern calm": planned.at(3)}
    busy = next(c for c in summary.conditions if c.label == "pattern busy")
    for arm in busy.arms:
        values = [trial.metrics.scalars["slowdown_mean_all"] for trial in arm.valid]
        wide, plain = t_interval(values, busy.interim), t_interval(values)
        assert arm.estimates["slowdown_mean_all"] == wide
        assert wide.high - wide.low > 1.05 * (plain.high - plain.low)


@pytest.mark.slow
def test_papers_and_comparisons_read_them_at_their_look_too(runs, load, tmp_path):
    measured = read_measured_trials(runs / "tiny", lambda done, total: None)
    busy = [ComparedTrial("t", {}, trial) for trial in measured if trial.cell["pattern"] == "busy"]
    assert _last_analysis(busy, {}).repeats == 8
    campaign = load("3")
    run(dataclasses.replace(campaign, name="tiny"), tmp_path)
    (found,) = compare_runs([runs / "tiny", tmp_path / "tiny"], Margins())
    assert any("Adaptive repeats" in note for note in found.notes)
    (plain,) = compare_runs([tmp_path / "tiny", tmp_path / "tiny"], Margins())
    assert not any("Adaptive repeats" in note for note in plain.notes)


@pytest.mark.slow
def test_from_python_and_from_the_command_line(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load()
    summary = closloop.run("tiny.yml", out="runs", jobs=2)
    assert [standing.done for standing in summary.condition_statuses] == ["most", "width"]
    assert len(closloop.plan("tiny.yml").trials) == 32

    def say(*arguments):
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    told = json.loads(say("run", "tiny.yml", "--out", "runs", "--json"))
    assert [item["done"] for item in told["repeats"]] == ["most", "width"]
    assert "pattern busy: 8 repeats" in say("run", "tiny.yml", "--out", "runs", "--no-report")
    planned = json.loads(say("plan", "tiny.yml", "--out", "runs", "--json"))["repeats"]
    assert (planned["least"]["trials"], planned["most"]["trials"]) == (12, 32)
    assert planned["likely"]["trials"] == 22
    text = say("plan", "tiny.yml", "--out", "elsewhere")
    assert "12 to 32 trials" in text
    assert "plan says how many are likely once 3 repeats have run" in " ".join(text.split())
    report = json.loads(say("report", "runs/tiny", "--json", "--no-html"))
    assert [c["look"]["repeats"] for c in report["conditions"]] == [8, 3]
    say("report", "runs/tiny")
    assert (
        "Adaptive repeats: this is interim analysis"
        in (tmp_path / "runs/tiny/report.html").read_text()
    )
