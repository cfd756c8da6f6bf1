"""Reports of runs that lack something, have more of it than usual, or were tampered with."""

import csv
import dataclasses
import io
import shutil
from urllib.parse import unquote

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from orchestration.analysis.report.report_page import build_report
from orchestration.analysis.report.selection import MAX_ARMS
from orchestration.analysis.summary import summarise
from orchestration.cli.report import report
from orchestration.core.errors import InputError, NotReadyError
from orchestration.core.knobs import ECN
from orchestration.core.records import MISSING, ChangeRecords, Samples
from orchestration.core.trial import TunerSpec
from orchestration.results.reader import finished_trials
from orchestration.results.stamp import Stamp
from orchestration.results.writer import write_trial


@pytest.fixture
def written(tmp_path, cases):
    """Return a function that writes trials and returns the report of their campaign."""

    def write(records=lambda record: record, seeds=(1, 2, 3), tuners=("secn1", "secn2"), **spec):
        folder = tmp_path / "runs"
        for seed in seeds:
            for tuner in tuners:
                named = tuner if isinstance(tuner, TunerSpec) else TunerSpec(tuner)
                case = cases(tuner if tuner in ("secn1", "secn2") else "secn1", seed, 1_000_000)
                trial = dataclasses.replace(case.trial, tuner=named, **spec)
                record = records(case.record)
                verdict = Stamp(True, (), ())
                place = folder / trial.id
                write_trial(place, trial, case.testbed, case.schedule, record, verdict, {})
        return build_report(summarise(folder))

    return write


def without_ports(record):
    return with_ports(record, record.ports.upto(0))


def with_ports(record, ports):
    return dataclasses.replace(record, samples={**record.samples, "queue": ports})


def with_lengths(record, qlen_bytes):
    values = {**record.ports.values, "qlen_bytes": qlen_bytes}
    return with_ports(record, Samples(record.ports.t_ns, values))


def half_unknown(record):
    """A device that has no new number at every second sample, and never one of one queue."""
    length = record.ports.qlen_bytes.copy()
    length[1::2, :10] = MISSING
    length[:, 10] = MISSING
    return with_lengths(record, length)


def acting(record):
    queues = record.ports.qlen_bytes.shape[1]
    at = np.repeat(np.arange(0, 900_000, 100_000), queues)
    kmax = 50_000 + 10_000 * (at // 100_000 % 3)
    changes = ChangeRecords(
        at, at + 20_000, at + 30_000, np.tile(np.arange(queues), 9),
        ECN.named(kmax // 4, kmax, np.full(len(at), 0.1)),
    )  # fmt: skip
    return dataclasses.replace(record, changes={"ecn": changes})


@pytest.mark.slow
def test_a_run_without_samples_of_ports_has_its_flows_and_says_what_it_lacks(written):
    made = written(without_ports, backend="imported")
    assert "No queue was sampled over time." in made.html
    assert "slowdown-cdf.csv" in made.csv
    assert not {name for name in made.csv if name.startswith(("queue", "fabric", "actions"))}
    assert "nan" not in "".join(made.csv.values()).lower()


def always_empty(record):
    return with_lengths(record, np.zeros_like(record.ports.qlen_bytes))


@pytest.mark.slow
def test_queues_that_held_nothing_have_no_empty_picture(written):
    made = written(always_empty)
    assert "queue-distribution.csv" not in made.csv
    assert "longer than 0B" not in made.html


def one_queue_only(record):
    ports = {
        name: np.where(np.arange(values.shape[1]) == 3, values, MISSING)
        for name, values in record.ports.values.items()
    }
    return with_ports(record, Samples(record.ports.t_ns, ports))


@pytest.mark.slow
def test_ports_without_samples_are_no_rows_of_the_picture_over_time(written):
    made = written(one_queue_only, backend="imported")
    (head, *_) = made.csv["fabric-over-time.csv"].splitlines()
    assert head.startswith("arm,from_ns,leaf0:eth3")
    assert head.count(",") == 2
    assert "39 ports have no samples." in made.html
    assert "more ports are not drawn" not in made.html


@pytest.mark.slow
def test_metrics_that_nothing_measured_are_named_and_no_rows(written, tmp_path):
    made = written(without_ports, backend="imported")
    assert "No metric of queues and links was measured." not in made.html
    assert "Not measured: mean queue; p99 queue;" in made.html
    assert "<td>mean queue</td>" not in made.html
    assert "<td>segments retransmitted</td>" in made.html


@pytest.mark.slow
def test_samples_without_a_number_are_drawn_nowhere(written):
    made = written(half_unknown, backend="hardware")
    for name, text in made.csv.items():
        rows = list(csv.DictReader(io.StringIO(text)))
        if name.startswith(("queue-leaf", "fabric")):
            assert not any("-1" in row.values() for row in rows), name
    assert "of the cells are blank, as nothing was sampled then." in made.html


@pytest.mark.slow
def test_a_replay_names_its_parent(written):
    made = written(parent="others/run-7 sha256:abc")
    assert "replays others" in made.html


def test_one_trial_alone_has_a_page(written):
    made = written(seeds=(1,), tuners=("secn1",))
    assert "The one trial is valid." in made.html
    assert not any(name.startswith(("pairs", "convergence")) for name in made.csv)


def test_actions_are_shown_with_the_readings_that_they_answer(written):
    made = written(acting, seeds=(1, 2), tuners=("secn1",))
    rows = list(csv.DictReader(io.StringIO(made.csv["actions-secn1.csv"])))
    assert [int(row["kmax_bytes"]) for row in rows[:4]] == [50_000, 60_000, 70_000, 50_000]
    assert "secn1 changed the thresholds of leaf" in made.html
    assert "8 times</h4>" in made.html
    assert "It raised kmax 6 times, after" in made.html
    assert "took effect 30us after its reading (median)" in made.html
    assert "320 changes in all queues" in made.html


@pytest.mark.slow
def test_of_many_tuners_pictures_show_some_and_tables_all(written):
    many = [TunerSpec("static", {"kmin_bytes": 1_000 * n, "kmax_bytes": 50_000}) for n in range(9)]
    made = written(seeds=(1, 2), tuners=many)
    rows = list(csv.DictReader(io.StringIO(made.csv["fct-cdf.csv"])))
    assert len({row["arm"] for row in rows}) == MAX_ARMS
    assert f"Figures show {MAX_ARMS} of 9 arms" in made.html
    assert made.html.count("<td>static(kmax_bytes=50000, kmin_bytes=8000)</td>") > 5


def test_links_have_the_text_of_the_csv_files(summary):
    made = build_report(summary)
    for name, text in made.csv.items():
        begin = made.html.index(f'download="{name}" href="') + len(f'download="{name}" href="')
        address = made.html[begin : made.html.index('"', begin)]
        assert unquote(address).partition(",")[2] == text


@pytest.mark.slow
def test_csv_files_hold_the_summary(summary, campaign, tmp_path):
    app = typer.Typer()
    app.command()(report)
    target = tmp_path / "deep" / "figures"
    done = CliRunner().invoke(app, [str(campaign), "--no-html", "--csv", str(target)])
    assert done.exit_code == 0, done.output
    with (target / "estimates.csv").open() as file:
        rows = list(csv.DictReader(file))
    (condition,) = summary.conditions
    for arm in condition.arms:
        for key, estimate in arm.estimates.items():
            (row,) = [r for r in rows if (r["arm"], r["metric"]) == (arm.name, key)]
            assert float(row["mean"] or "nan") == pytest.approx(estimate.mean, nan_ok=True)
            assert int(row["n"]) == estimate.n
    with (target / "comparisons.csv").open() as file:
        verdicts = [row["real"] == "True" for row in csv.DictReader(file)]
    assert verdicts == [item.real for item in condition.comparisons]
    with (target / "trials.csv").open() as file:
        assert [row["valid"] for row in csv.DictReader(file)].count("False") == 1
    assert len(list(target.iterdir())) == 3 + len(build_report(summary).csv)


def test_without_chromium_a_pdf_is_refused_with_the_command_before_any_work(campaign, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    app = typer.Typer()
    app.command()(report)
    done = CliRunner().invoke(app, [str(campaign), "--pdf"])
    assert isinstance(done.exception, NotReadyError)
    assert done.exception.exit_code == 3
    assert "apt-get install chromium" in done.exception.remedy
    assert done.stdout == ""


def test_flows_of_another_trial_are_told_by_file_and_remedy(campaign, tmp_path):
    copy = shutil.copytree(campaign, tmp_path / "copy")
    one, other = finished_trials(copy)[0], finished_trials(copy)[1]
    shutil.copy(other / "flows.parquet", one / "flows.parquet")
    with pytest.raises(InputError) as error:
        summarise(copy)
    (problem,) = error.value.problems
    assert problem.where == str(one / "flows.parquet")
    assert "which are not the" in problem.what
    assert "schedule.parquet" in problem.what
    assert problem.remedy


def test_the_same_damage_in_many_trials_is_told_a_few_times(campaign, tmp_path):
    copy = shutil.copytree(campaign, tmp_path / "copy")
    for folder in finished_trials(copy):
        (folder / "ports.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(InputError) as error:
        summarise(copy)
    assert len(error.value.problems) == 10
    shown = [line for line in str(error.value).splitlines() if not line.startswith("  -> ")]
    assert len(shown) == 5
    assert "ports.parquet (and 5 more like it): " in shown[-1]


@pytest.mark.parametrize("name", ["trial.json", "testbed.json", "flows.parquet", "ports.parquet"])
def test_a_missing_file_is_named(campaign, tmp_path, name):
    copy = shutil.copytree(campaign, tmp_path / "copy")
    missing = finished_trials(copy)[3] / name
    missing.unlink()
    with pytest.raises(InputError) as error:
        summarise(copy)
    (problem,) = error.value.problems
    assert (problem.where, problem.what) == (str(missing), "the file is missing")
