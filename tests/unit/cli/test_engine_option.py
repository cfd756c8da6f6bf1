"""The option --in, and that a run, a replay and a comparison keep engines apart."""

import json
import shutil
from pathlib import Path

import pytest

import closloop
from orchestration.backends.emulated.engines import packet_engine_version
from orchestration.core.errors import InputError
from orchestration.results.reader import finished_trials
from tests.programs import closloop_in_process
from tests.unit.cli.test_remedies import obey, remedies, run

CAMPAIGN = """
campaign: tiny
testbed: rlcc-7
backend: emulated
host: {congestion_control: dcqcn}
tuners: [secn2]
traffic:
  - {kind: incast, fan_in: 6, size: 100KB, period: 500us, receiver: h1}
repeats: 1
duration: 1ms
drain: 100ms
"""
# of an engine that there is not
OTHER = "0123456789ab"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a folder with a campaign, and its run in the process."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.yml").write_text(CAMPAIGN)
    run(folder, "run", "tiny.yml", "--no-report")
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "here"))


def trial_of(folder, name="tiny"):
    (trial,) = finished_trials(folder / "runs" / name)
    return trial


def with_facts(folder, **changed):
    """Change what the finished trial says about its engine; None removes a fact."""
    path = trial_of(folder) / "trial.json"
    data = json.loads(path.read_text())
    facts = {**data["facts"], **changed}
    data["facts"] = {name: value for name, value in facts.items() if value is not None}
    path.write_text(json.dumps(data))


def in_kernel(folder):
    """Let the finished trial be one of an earlier version, which ran in the kernel."""
    with_facts(folder, engine=None, engine_hash=None, kernel_hash="cbdce3f4634e")


def refusal(folder, *words):
    return run(folder, *words, code=2).stderr


def test_a_plan_says_which_engine_and_why(folder):
    assert "in the process: RoCE flows only" in run(folder, "plan", "tiny.yml").stdout
    made = json.loads(run(folder, "plan", "tiny.yml", "--in", "kernel", "--json").stdout)
    assert (made["engine"], made["engine_reason"]) == ("kernel", "as --in kernel says")
    (folder / "tcp.yml").write_text(CAMPAIGN.replace("dcqcn", "dctcp"))
    in_words = "in the virtual-time kernel: flows are Linux TCP (dctcp)"
    assert in_words in run(folder, "plan", "tcp.yml").stdout
    search = run(folder, "search", "tiny.yml", "--plan", "--json").stdout
    assert json.loads(search)["engine"] == "process"


def test_python_chooses_and_names_engines_as_the_command_line_does(folder, monkeypatch):
    monkeypatch.chdir(folder)
    plans = [closloop.plan("tiny.yml", engine=name) for name in ("", "kernel")]
    assert [made.engine for made in plans] == ["process", "kernel"]
    assert plans[0].wall_s < plans[1].wall_s
    summary = closloop.run("tiny.yml", out="again", engine="process")
    assert (summary.finished, summary.failed) == (1, {})
    (folder / "tcp.yml").write_text(CAMPAIGN.replace("dcqcn", "dctcp"))
    with pytest.raises(InputError, match="flows are Linux TCP"):
        closloop.run("tcp.yml", engine="process")


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_an_engine_that_cannot_run_the_campaign_is_bad_input(folder, verb):
    (folder / "tcp.yml").write_text(CAMPAIGN.replace("dcqcn", "dctcp"))
    refused = refusal(folder, verb, "tcp.yml", "--in", "process")
    assert "--in process: these trials need the kernel: flows are Linux TCP (dctcp)" in refused
    refused = refusal(folder, verb, "tcp.yml", "--on", "fluid", "--in", "kernel")
    assert "--in kernel: the fluid backend has one engine only" in refused


def test_ids_of_trials_do_not_depend_on_the_engine(folder):
    plans = [
        json.loads(run(folder, "plan", "tiny.yml", "--in", engine, "--json").stdout)
        for engine in ("process", "kernel")
    ]
    ids = [[trial["id"] for trial in plan["trials"]] for plan in plans]
    assert ids[0] == ids[1] == [trial_of(folder).name]


def test_the_journal_and_each_trial_name_the_engine(folder):
    with (folder / "runs/tiny/journal.jsonl").open() as lines:
        started = json.loads(next(lines))
    facts = json.loads((trial_of(folder) / "trial.json").read_text())["facts"]
    for known in (started, facts):
        assert (known["engine"], known["engine_hash"]) == ("process", packet_engine_version())
        assert known["engine_compiler"]
        assert known["engine_abi"] >= 1


def test_a_run_is_not_continued_in_another_engine(folder):
    more = ("run", "tiny.yml", "--no-report", "--repeats", "2")
    in_kernel(folder)
    refused = run(folder, *more, code=2)
    assert (
        "runs/tiny: holds trials that ran in the virtual-time kernel, and these would run in the "
        "process"
    ) in refused.stderr
    go_on, anew = remedies(refused)
    assert go_on == "closloop run tiny.yml --out runs --in kernel"
    obey(folder, anew)
    (former,) = (path for path in (folder / "runs").iterdir() if path.name != "tiny")
    assert finished_trials(former)
    run(folder, *more)  # what the process began, it continues
    assert len(finished_trials(folder / "runs/tiny")) == 2


def test_a_comparison_across_engines_warns(folder):
    shutil.copytree(folder / "runs/tiny", folder / "again")
    before = run(folder, "compare", "again", "runs/tiny").stdout
    assert "warning: A ran" not in before
    with_facts(folder, engine_hash=OTHER)
    version = packet_engine_version()
    told = run(folder, "compare", "again", "runs/tiny").stdout
    assert f"A ran in the process (packet engine {version})" in told
    assert f"B in the process (packet engine {OTHER})" in told
    assert "packet engine's version" in told
    in_kernel(folder)
    assert "B in the virtual-time kernel" in run(folder, "compare", "again", "runs/tiny").stdout


QUESTION = ("--at", "0ns", "--queue", "switch1:eth0", "--set", "kmin=1KB", "--verify")


def test_a_question_is_answered_in_the_engine_of_its_trial(folder):
    asked = ("whatif", "runs/tiny", *QUESTION)
    told = json.loads(run(folder, *asked, "--json").stdout)
    assert told["same_as_parent"] is True
    refused = refusal(folder, *asked, "--in", "kernel", "--fresh")
    assert "the trial ran in the process, and another engine does not repeat it" in refused


def test_another_version_is_refused_by_name_until_the_replay_is_asked_about(folder):
    with_facts(folder, engine_hash=OTHER)
    for words in (("whatif", "runs/tiny", *QUESTION), ("replay", "runs/tiny")):
        refused = run(folder, *words, code=2)
        assert (
            f"it ran in the packet engine {OTHER}, and this closloop has {packet_engine_version()}"
        ) in refused.stderr
        (remedy,) = remedies(refused)
    obey(folder, remedy)
    (replayed,) = (folder / "runs").glob("*replay*[!s]")
    assert run(folder, "whatif", str(replayed), *QUESTION, "--json").returncode == 0


def test_a_replay_stays_in_the_engine_of_its_parent(folder):
    words = ("replay", "runs/tiny", "--plan-only", "--json")

    def planned(*more):
        ended = closloop_in_process(*words, *more, cwd=folder)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)["engine"]

    assert planned() == "process"
    in_kernel(folder)
    assert planned("--fresh") == "kernel"
    assert planned("--in", "process") == "process"
    assert planned("--on", "fluid", "--congestion-control", "dctcp", "--name", "other") is None
