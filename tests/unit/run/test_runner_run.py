"""Running a campaign: results, failures, resuming, and what is refused before anything starts."""

import faulthandler
import json
import os
import shutil
import signal

import pytest

from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.core.errors import InputError, NotReadyError, TrialError
from orchestration.run import executors as room
from orchestration.run.folder import RunFolder, read_journal
from orchestration.run.launcher import default_jobs, run_campaign
from tests.trials import incast_campaign

CAMPAIGN = incast_campaign("tiny", "secn1, secn2", 2)


class Listener:
    """Remembers what it is told, and how many trials ran at once."""

    def __init__(self):
        self.events = []
        self.running = 0
        self.maximum = 0

    def planned(self, trials, finished, jobs):
        self.events.append(("planned", trials, finished, jobs))

    def started(self, trial):
        self.running += 1
        self.maximum = max(self.maximum, self.running)

    def progressed(self, trial, progress):
        self.events.append(("progressed", trial.id, progress.virtual_ns))

    def finished(self, trial, result):
        self.running -= 1
        self.events.append(("finished", trial.id))

    def failed(self, trial, failure):
        self.running -= 1
        self.events.append(("failed", trial.id))

    def tick(self):
        pass


class Faulty(FluidBackend):
    """Misbehaves in the trials of one tuner."""

    def __init__(self, fault):
        self.fault = fault

    def run(self, run):
        if run.trial.tuner.name == "secn2":
            self.fault()
        return super().run(run)


class NotReady(FluidBackend):
    """Has room for some trials at a time."""

    def __init__(self, maximum):
        self.maximum = maximum

    def check(self, testbed, jobs, trials=()):
        if jobs > self.maximum:
            raise NotReadyError(f"no room for {jobs}")


@pytest.fixture
def load(tmp_path):
    def load_text(text=CAMPAIGN):
        path = tmp_path / "tiny.yml"
        path.write_text(text)
        return load_campaign(path)

    return load_text


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs"


def journal(out):
    return list(read_journal(out / "tiny" / "journal.jsonl"))


def contents(folder):
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def temporary(out):
    return [path.name for path in (out / "tiny").iterdir() if path.name.startswith(".")]


def run(campaign, out, backend=None, jobs=2, **options):
    listener = Listener()
    summary = run_campaign(campaign, backend or FluidBackend(), out, jobs, listener, **options)
    return summary, listener


def test_every_trial_leaves_a_finished_folder_and_a_journal(load, out):
    campaign = load()
    summary, listener = run(campaign, out)
    assert (summary.trials, summary.finished, summary.skipped) == (4, 4, 0)
    assert summary.exit_code == 0
    for trial in campaign.trials:
        about = json.loads((out / "tiny" / trial.id / "trial.json").read_text())
        assert about["id"] == trial.id
        assert about["facts"]["wall_s"] >= 0
    assert (out / "tiny" / "campaign.yml").read_text() == CAMPAIGN
    assert temporary(out) == []
    events = [entry["event"] for entry in journal(out)]
    assert events[0] == "run-started"
    assert events[-1] == "run-finished"
    assert events.count("trial-started") == events.count("trial-finished") == 4
    assert listener.events[0] == ("planned", 4, 0, 2)
    assert [kind for kind, *_ in listener.events].count("finished") == 4


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_no_more_trials_run_at_once_than_asked_for(load, out, jobs):
    _, listener = run(load(), out, jobs=jobs)
    assert listener.maximum == jobs


def test_trials_start_in_the_campaigns_order(load, out):
    campaign = load()
    run(campaign, out)
    started = [entry["trial"] for entry in journal(out) if entry["event"] == "trial-started"]
    assert started == [trial.id for trial in campaign.trials]


@pytest.mark.slow
def test_the_same_command_runs_nothing_twice(load, out):
    run(load(), out)
    before = {p.name: contents(p) for p in (out / "tiny").iterdir() if p.is_dir()}
    summary, _ = run(load(), out)
    assert (summary.finished, summary.skipped, summary.exit_code) == (0, 4, 0)
    assert before == {p.name: contents(p) for p in (out / "tiny").iterdir() if p.is_dir()}


@pytest.mark.slow
def test_what_is_missing_is_run_again(load, out):
    campaign = load()
    run(campaign, out)
    shutil.rmtree(out / "tiny" / campaign.trials[1].id)
    summary, listener = run(campaign, out)
    assert (summary.finished, summary.skipped) == (1, 3)
    assert listener.events[-1] == ("finished", campaign.trials[1].id)


@pytest.mark.slow
def test_a_trial_that_fails_does_not_stop_the_others(load, out):
    def fault():
        raise TrialError("the guest died", "look at its console", console="last words")

    summary, _ = run(load(), out, Faulty(fault))
    assert (summary.finished, len(summary.failed), summary.exit_code) == (2, 2, 1)
    assert {failure.problems[0].what for failure in summary.failed.values()} == {"the guest died"}
    failed = [entry for entry in journal(out) if entry["event"] == "trial-failed"]
    assert {entry["trial"] for entry in failed} == set(summary.failed)
    assert failed[0]["console"] == "last words"
    assert failed[0]["remedy"] == "look at its console"
    assert temporary(out) == []
    assert not any((out / "tiny" / trial).exists() for trial in summary.failed)

    again, _ = run(load(), out)
    assert (again.finished, again.skipped, again.exit_code) == (2, 2, 0)


def test_an_unexpected_error_is_a_failure_with_its_traceback(load, out):
    summary, _ = run(load(), out, Faulty(lambda: 1 // 0))
    failure = next(iter(summary.failed.values()))
    assert "ZeroDivisionError" in failure.problems[0].what
    assert "Traceback" in failure.console


def test_a_worker_that_is_killed_is_a_failure_with_what_it_printed(load, out):
    def fault():
        os.write(2, b"about to be killed")
        os.kill(os.getpid(), signal.SIGKILL)

    summary, _ = run(load(), out, Faulty(fault))
    failure = next(iter(summary.failed.values()))
    assert failure.problems[0].what.endswith("was killed by SIGKILL")
    assert "about to be killed" in failure.console
    assert summary.finished == 2


def test_a_crash_in_c_is_a_failure_with_its_reason_and_its_seed(load, out):
    def fault():
        faulthandler.disable()  # pytest's
        os.write(2, b"compiling once ...\nthe policy divides by 0\n")
        os.kill(os.getpid(), signal.SIGFPE)

    summary, _ = run(load(), out, Faulty(fault))
    (problem,) = next(iter(summary.failed.values())).problems
    assert problem.what.endswith("was killed by SIGFPE: the policy divides by 0")
    assert "the seed " in problem.remedy
    assert summary.finished == 2


def test_a_worker_that_ends_silently_is_a_failure(load, out):
    summary, _ = run(load(), out, Faulty(lambda: os._exit(7)))
    assert next(iter(summary.failed.values())).problems[0].what.endswith("ended with 7")


def test_invalid_trials_are_kept_and_told_each_time(load, out):
    campaign = load(CAMPAIGN.replace("drain: 20ms", "drain: 0ms").replace("64KB", "64MB"))
    summary, _ = run(campaign, out)
    assert (summary.finished, len(summary.invalid), summary.exit_code) == (4, 4, 1)
    assert "had not ended" in next(iter(summary.invalid.values()))[0]
    again, _ = run(campaign, out)
    assert (again.skipped, again.invalid, again.exit_code) == (4, summary.invalid, 1)


def test_a_backend_that_is_not_ready_stops_all_before_anything_is_written(load, out):
    with pytest.raises(NotReadyError, match="no room for 2"):
        run(load(), out, NotReady(1))
    assert not out.exists()


def test_a_full_disk_stops_all_before_anything_is_written(load, out, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NotReadyError, match="1MB free"):
        run(load(), out)
    assert not out.exists()


def test_as_many_jobs_as_cores_unless_the_backend_has_less_room(load, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(3)))
    assert default_jobs(load(), NotReady(100)) == 3
    assert default_jobs(load(), NotReady(2)) == 2
    assert default_jobs(load(), NotReady(0)) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert default_jobs(load(), NotReady(100)) == 4


@pytest.mark.slow
def test_a_comment_in_the_file_changes_nothing(load, out):
    run(load(), out)
    summary, _ = run(load("# why\n" + CAMPAIGN), out)
    assert summary.skipped == 4
    assert (out / "tiny" / "campaign.yml").read_text().startswith("# why")


@pytest.mark.slow
def test_more_repeats_are_added(load, out):
    run(load(), out)
    summary, _ = run(load(CAMPAIGN.replace("repeats: 2", "repeats: 3")), out)
    assert (summary.skipped, summary.finished) == (4, 2)


@pytest.mark.slow
def test_another_campaign_in_the_folder_is_refused_or_put_aside(load, out):
    run(load(), out)
    before = contents(out / "tiny")
    other = load(CAMPAIGN.replace("64KB", "65KB"))
    with pytest.raises(InputError, match="no longer describes") as caught:
        run(other, out)
    assert "--out" in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert contents(out / "tiny") == before

    summary, _ = run(other, out, fresh=True)
    assert (summary.finished, summary.skipped) == (4, 0)
    assert contents(out / "tiny.1") == before


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_something_else_is_left_alone(load, out, fresh):
    (out / "tiny").mkdir(parents=True)
    (out / "tiny" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not a run folder"):
        run(load(), out, fresh=fresh)
    assert [path.name for path in (out / "tiny").iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_two_runs_cannot_share_a_folder(load, out):
    campaign = load()
    with RunFolder(out / "tiny") as held:
        held.open(campaign, fresh=False)
        with pytest.raises(NotReadyError, match="in use by another run"):
            run(campaign, out)
    run(campaign, out)


def test_left_overs_go_if_they_are_the_runners_own(load, out):
    campaign = load()
    run(campaign, out)
    mine = [f".{campaign.trials[0].id}.work", f".{campaign.trials[1].id}.partial"]
    for name in [*mine, ".notes.work", ".stranger-r1-0123456789.partial"]:
        (out / "tiny" / name).mkdir()
    run(campaign, out)
    assert sorted(temporary(out)) == [".notes.work", ".stranger-r1-0123456789.partial"]
