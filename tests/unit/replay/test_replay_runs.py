"""Replays of runs on the fluid backend, where the same trial gives the same tables to the bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from inventory.files import load_testbed
from orchestration.analysis.stamp import stamp
from orchestration.analysis.summary import summarise
from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import Campaign, load_campaign
from orchestration.core.errors import InputError
from orchestration.core.files import sha256_of
from orchestration.core.ports import TrialRun
from orchestration.replay.build import build_replays
from orchestration.replay.request import ReplayRequest
from orchestration.results.reader import TrialResult, finished_trials, read_trial
from orchestration.results.tables import TABLES, read_table, write_table
from orchestration.results.writer import write_trial
from orchestration.run.checked import check_fit
from traffic.schedule import make_schedule

PARENT = """campaign: old
testbed: {testbed}
backend: fluid
tuners: [secn1, {{name: random, label: dice}}]
traffic:
  - {{kind: message-mix, load: 0.3, sizes: [1KB, 50KB]}}
  - {{kind: incast, fan_in: 3, size: 20KB, period: 500us}}
  - {{kind: incast, fan_in: 2, size: 30KB, period: 500us}}
  - {{kind: all-to-all, size: 2KB, period: 1ms}}
repeats: 2
duration: 2ms
drain: 30ms
sample_period: 50us
action_period: 100us
decision_latency: 20us
host: {{min_rto: 3ms}}
faults: {faults}
"""
# Parallel links, ports in no order, and an MTU of its own.
CUSTOM = """kind: custom
name: odd
source: made up
mtu: 4000B
buffer: 3MB
hosts: [b2, a1, b1, a2]
switches: [{name: up, tier: 2}, {name: s2, tier: 1}, {name: s1, tier: 1}]
links:
  - {a: s1, b: up, rate: 40Gbps, delay: 700ns}
  - {a: a1, b: s1, rate: 10Gbps, delay: 300ns}
  - {a: b2, b: s2, rate: 25Gbps, delay: 300ns}
  - {a: b1, b: s2, rate: 10Gbps, delay: 300ns}
  - {a: s2, b: up, rate: 40Gbps, delay: 700ns}
  - {a: a2, b: s1, rate: 10Gbps, delay: 300ns}
  - {a: s1, b: up, rate: 40Gbps, delay: 700ns}
"""


def run(campaign: Campaign, out: Path) -> list[TrialResult]:
    """Run a campaign as its workers do, in this process."""
    for trial in campaign.trials:
        testbed = load_testbed(trial.testbed)
        schedule = make_schedule(trial, testbed)
        work = out / f".work-{trial.id}"
        work.mkdir(parents=True)
        record = FluidBackend().run(TrialRun(trial, testbed, schedule, work))
        verdict = stamp(trial, testbed, schedule, record)
        folder = out / campaign.name / trial.id
        write_trial(folder, trial, testbed, schedule, record, verdict, {"wall_s": 0.1})
    return [read_trial(folder) for folder in finished_trials(out / campaign.name)]


def parent(folder: Path, testbed: str = "rlcc-7", faults: str = "[]") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "old.yml"
    file.write_text(PARENT.format(testbed=testbed, faults=faults), encoding="utf-8")
    run(load_campaign(file), folder)
    return folder / "old"


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """Run the parent once; tests that change it copy it."""
    return parent(tmp_path_factory.mktemp("old") / "runs")


def replay(run_folder: Path, out: Path, **changes) -> Campaign:
    (made,) = build_replays(ReplayRequest(run_folder, **changes), out)
    return load_campaign(made.file)


def tables(trial: TrialResult) -> dict[str, np.ndarray]:
    return {
        f"{name}.{column}": values
        for name in TABLES
        for column, values in trial.table(name).items()
    }


def assert_same_tables(trial: TrialResult, other: TrialResult, *names: str) -> None:
    ours, theirs = tables(trial), tables(other)
    for key in ours:
        if not names or key.startswith(names):
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


def assert_repeats(old: Path, again: list[TrialResult]) -> None:
    """Each replay has its parent's tables, and says which one that is."""
    before = {folder.name: read_trial(folder) for folder in finished_trials(old)}
    assert len(again) == len(before)
    for trial in again:
        named, digest = trial.spec.parent.split(" sha256:")
        origin = before.pop(named.removeprefix("old/"))
        assert digest == sha256_of(origin.folder / "trial.json")
        assert (trial.spec.seed, trial.spec.repeat) == (origin.spec.seed, origin.spec.repeat)
        assert trial.spec.cell["tuner"] == origin.spec.cell["tuner"]
        assert_same_tables(origin, trial)
    assert not before


@pytest.mark.slow
def test_a_run_replayed_is_the_run(old, tmp_path):
    campaign = replay(old, tmp_path)
    assert {trial.tuner.name for trial in campaign.trials} == {"recorded"}
    again = run(campaign, tmp_path)
    assert_repeats(old, again)
    # A replay is a run like any other: it can be replayed in its turn.
    for trial in run(replay(tmp_path / campaign.name, tmp_path, name="third"), tmp_path):
        origin = tmp_path / campaign.name / trial.spec.parent.split()[0].rpartition("/")[2]
        assert_same_tables(read_trial(origin), trial)


@pytest.mark.slow
def test_a_testbed_of_ones_own_and_drawn_faults_are_replayed(tmp_path):
    bed = tmp_path / "bed.yml"
    bed.write_text(CUSTOM, encoding="utf-8")
    faults = "[{share: 0.4, down: 700us, up: 1500us, convergence: 100us}]"
    run_folder = parent(tmp_path / "runs", str(bed), faults)
    bed.unlink()  # the folder alone is enough
    assert_repeats(run_folder, run(replay(run_folder, tmp_path / "new"), tmp_path / "new"))


@pytest.mark.slow
def test_reports_take_the_repeats_of_a_recording_together(old, tmp_path):
    campaign = replay(old, tmp_path)
    run(campaign, tmp_path)
    summary = summarise(tmp_path / campaign.name)
    (condition,) = summary.conditions
    assert {arm.name: len(arm.trials) for arm in condition.arms} == {"secn1": 2, "dice": 2}
    assert summary.parents == ("old",)


@pytest.mark.slow
def test_another_tuner_in_place_sends_the_same_flows(old, tmp_path):
    campaign = replay(
        old,
        tmp_path,
        tuners=("amt", "{name: static, label: deep, kmin_bytes: 1MB, kmax_bytes: 2MB}"),
    )
    assert [trial.tuner.name for trial in campaign.trials].count("amt") == 2
    before = {trial.spec.repeat: trial for trial in map(read_trial, finished_trials(old))}
    for trial in run(campaign, tmp_path):
        assert_same_tables(before[trial.spec.repeat], trial, "schedule")
        assert trial.spec.parent.startswith("old/")


def test_a_recording_beside_a_tuner_of_the_same_name_has_another_label(old, tmp_path):
    campaign = replay(old, tmp_path, tuners=("recorded", "secn1"))
    labels = {str(cell["tuner"]) for cell in campaign.cells}
    assert labels == {"recorded-secn1", "dice", "secn1"}


@pytest.mark.slow
def test_rates_change_and_thresholds_only_if_asked(old, tmp_path):
    (trial,) = (t for t in finished_trials(old) if t.name.startswith("secn1-r1"))
    name = load_testbed("rlcc-7").links_by_name
    link = next(iter(name))
    plain = run(replay(trial, tmp_path, scale_rates=0.5, rate=[f"{link}=1Gbps"]), tmp_path)[0]
    rates = [item.rate_bps for item in plain.testbed.links]
    recorded = [item.rate_bps for item in read_trial(trial).testbed.links]
    changed = name[link]
    assert [rates[i] for i in changed] == [10**9] * len(changed)
    assert [r for i, r in enumerate(rates) if i not in changed] == [
        r // 2 for i, r in enumerate(recorded) if i not in changed
    ]
    assert plain.testbed.name != "rlcc-7"
    assert_same_tables(read_trial(trial), plain, "schedule", "actions.k", "actions.pmax")
    halved = run(replay(trial, tmp_path, scale_rates=0.5, scale_thresholds=True), tmp_path)[0]
    np.testing.assert_array_equal(
        halved.table("actions")["kmax_bytes"],
        read_trial(trial).table("actions")["kmax_bytes"] // 2,
    )


def test_one_trial_can_be_repeated_with_seeds_of_its_own(old, tmp_path):
    (trial,) = (t for t in finished_trials(old) if t.name.startswith("dice-r2"))
    campaign = replay(trial, tmp_path, repeats=3)
    seeds = [t.seed for t in sorted(campaign.trials, key=lambda t: t.repeat)]
    assert seeds[0] == read_trial(trial).spec.seed
    assert len(set(seeds)) == 3
    assert {t.parent for t in campaign.trials} == {
        f"old/{trial.name} sha256:{sha256_of(trial / 'trial.json')}"
    }


@pytest.mark.slow
def test_late_readings_are_answered_at_their_samples(old, tmp_path):
    """A reading begins a little after its time, and not always as late as the recorded one."""
    copy = Path(shutil.copytree(old, tmp_path / "old"))
    for folder in finished_trials(copy):
        actions = read_table(folder / "actions.parquet", "actions")
        late = np.where(actions["t_ns"] > 0, actions["t_ns"] + 37, actions["t_ns"])
        write_table(folder / "actions.parquet", "actions", {**actions, "t_ns": late})
    assert_repeats(old, run(replay(copy, tmp_path), tmp_path))


def test_a_knob_that_one_repeat_turned_has_a_file_for_each(old, tmp_path):
    copy = Path(shutil.copytree(old, tmp_path / "old"))
    (turned,) = (t for t in finished_trials(copy) if t.name.startswith("dice-r2"))
    switch = load_testbed("rlcc-7").switches[0]
    table = {"t_ns": [100_037], "decided_ns": [100_037], "applied_ns": [120_037]}
    rows = {name: np.array(column) for name, column in table.items()}
    settings = {"device": np.array([switch], dtype=object), "timeout_ns": np.array([70_000])}
    path = turned / TABLES["actions_flowlet_timeout"].file
    write_table(path, "actions_flowlet_timeout", {**rows, **settings})
    (made,) = build_replays(ReplayRequest(copy), tmp_path)
    inputs = made.file.parent
    files = {file.name: file.read_text() for file in inputs.glob("actions_flowlet_timeout-*")}
    header = "t_ns,device,timeout_ns\n"
    assert sorted(files.values()) == [header, f"{header}100000,{switch},70000\n"]
    campaign = load_campaign(made.file)
    params = {t.id: t.tuner.params.keys() for t in campaign.trials}
    assert sorted(map(len, params.values())) == [1, 1, 2, 2]
    # the fluid backend's switches have no flowlets
    testbeds = {t.testbed: load_testbed(t.testbed) for t in campaign.trials}
    with pytest.raises(InputError, match="'flowlet_timeout', which the fluid backend lacks"):
        check_fit(campaign.trials, testbeds)


def test_invalid_trials_are_replayed_only_by_name(old, tmp_path):
    copy = Path(shutil.copytree(old, tmp_path / "old"))
    bad, *others = finished_trials(copy)
    about = json.loads((bad / "trial.json").read_text())
    about["stamp"]["valid"] = False
    (bad / "trial.json").write_text(json.dumps(about))
    assert len(replay(copy, tmp_path, name="rest").trials) == len(others)
    assert len(replay(copy, tmp_path, name="globbed", trials="*-r?-*").trials) == len(others)
    assert len(replay(copy, tmp_path, name="named", trials=bad.name).trials) == 1
    assert len(replay(bad, tmp_path, name="folder").trials) == 1
    with pytest.raises(InputError, match="none of its 1 trials is valid"):
        replay(copy, tmp_path, trials=f"{bad.name[:8]}*{bad.name[-5:]}")


@pytest.mark.slow
def test_the_same_replay_is_left_alone_and_another_spares_its_results(old, tmp_path):
    campaign = replay(old, tmp_path, name="mine")
    written = campaign.path.stat().st_mtime_ns
    assert replay(old, tmp_path, name="mine").path.stat().st_mtime_ns == written
    replay(old, tmp_path, name="mine", tuners=("amt",))  # nothing has run yet: replaced
    run(replay(old, tmp_path, name="mine"), tmp_path)
    with pytest.raises(InputError, match="belongs to another replay"):
        replay(old, tmp_path, name="mine", tuners=("amt",))


def spoil(trial: Path, table: str, **columns) -> None:
    before = read_table(trial / f"{table}.parquet", table)
    write_table(trial / f"{table}.parquet", table, {**before, **columns})


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no schedule", "schedule.parquet: the file is missing"),
        ("no actions", "actions.parquet: the file is missing"),
        ("cut actions", "actions.parquet: cannot be read as Parquet"),
        ("clock", "actions.parquet: row [0-9]+ has an earlier t_ns"),
        ("thresholds", "actions.parquet: row 1 has not 0 <= kmin_bytes"),
        ("order", "schedule.parquet: row 2 starts before"),
        ("newer", "trial.json: has format 99"),
    ],
)
def test_a_damaged_trial_is_refused(old, tmp_path, what, said):
    (source,) = (t for t in finished_trials(old) if t.name.startswith("dice-r1"))
    trial = Path(shutil.copytree(source, tmp_path / source.name))
    actions, schedule = trial / "actions.parquet", trial / "schedule.parquet"
    if what == "no schedule":
        schedule.unlink()
    elif what == "no actions":
        actions.unlink()
    elif what == "cut actions":
        actions.write_bytes(actions.read_bytes()[:700])
    elif what == "clock":
        spoil(trial, "actions", t_ns=read_table(actions, "actions")["t_ns"][::-1])
    elif what == "thresholds":
        spoil(trial, "actions", kmin_bytes=read_table(actions, "actions")["kmax_bytes"] + 1)
    elif what == "order":
        spoil(trial, "schedule", start_ns=read_table(schedule, "schedule")["start_ns"][::-1])
    elif what == "newer":
        about = json.loads((trial / "trial.json").read_text())
        (trial / "trial.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(InputError, match=said) as caught:
        replay(trial, tmp_path)
    assert all(problem.remedy for problem in caught.value.problems)
    assert not list(tmp_path.glob("*.inputs"))


def test_a_testbed_without_the_hosts_is_refused_with_the_line(old, tmp_path):
    with pytest.raises(
        InputError, match=r"flows-1.csv:\d+: testbed acc-fig8 has no host"
    ) as caught:
        replay(parent_on_other_hosts(tmp_path), tmp_path, testbed="acc-fig8", tuners=("secn1",))
    assert all(problem.remedy for problem in caught.value.problems)


def parent_on_other_hosts(tmp_path: Path) -> Path:
    bed = tmp_path / "bed.yml"
    bed.write_text(CUSTOM, encoding="utf-8")
    return parent(tmp_path / "runs", str(bed))


def test_flows_of_a_file_need_a_testbed_and_a_tuner(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("start_ns,src,dst,bytes,class\n0,h1,h2,9,a\n150001,h3,h2,9,b\n")
    with pytest.raises(InputError, match="does not name a testbed"):
        replay(file, tmp_path, tuners=("secn1",))
    with pytest.raises(InputError, match="has no recorded actions"):
        replay(file, tmp_path, testbed="rlcc-7")
    with pytest.raises(InputError, match=r"is not a CSV of flows\n  -> .* closloop import flows"):
        replay(Path(shutil.copy(file, tmp_path / "mine.pcap")), tmp_path, tuners=("secn1",))
    campaign = replay(
        file, tmp_path, testbed="rlcc-7", tuners=("secn1",), backend="fluid", repeats=2
    )
    assert {t.parent for t in campaign.trials} == {f"mine.csv sha256:{sha256_of(file)}"}
    assert {t.duration_ns for t in campaign.trials} == {200_000}
    trials = run(campaign, tmp_path)
    assert all(trial.stamp.valid for trial in trials)
    assert trials[0].table("schedule")["class"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backend": "emulate"}, "--on: unknown backend 'emulate'"),
        ({"repeats": 3}, "--repeats: 3 repeats are asked for, 2 were recorded"),
        ({"repeats": 10**9, "trials": "*-r1-*"}, "--repeats: 1,000,000,000 repeats are more than"),
        ({"trials": "nothing"}, "no trial of .* is called 'nothing'"),
        ({"scale_rates": 0.0}, "0 is not a factor"),
        ({"rate": ["h1-h2=1Gbps"]}, "no link 'h1-h2'"),
        ({"tuners": ("{label: x}",)}, "names no tuner"),
    ],
)
def test_what_cannot_be_replayed_is_refused(old, tmp_path, changes, said):
    with pytest.raises(InputError, match=said) as caught:
        replay(old, tmp_path, **changes)
    assert all(problem.remedy for problem in caught.value.problems)


@pytest.mark.slow
def test_imported_runs_are_replayed_where_the_user_says(old, tmp_path):
    """Others' results have flows, but neither patterns nor actions, and settings of their own."""
    folder = tmp_path / "others"
    for source in finished_trials(old):
        trial = Path(shutil.copytree(source, folder / source.name))
        about = json.loads((trial / "trial.json").read_text())
        about["spec"] |= {"campaign": "others", "backend": "imported", "traffic": [], "repeat": 0}
        about["spec"] |= {"host": {"congestion_control": "dcqcn", "min_rto_ns": 1_000_000}}
        about["spec"] |= {"decision_latency_ns": 0, "drain_ns": 0}
        (trial / "trial.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"was imported.*\n.*--on emulated"):
        replay(folder, tmp_path, tuners=("secn1",))
    with pytest.raises(InputError, match="congestion control dcqcn"):
        build_replays(ReplayRequest(folder, "fluid", ("secn1",)), tmp_path)
    asked = ReplayRequest(folder, "fluid", ("secn1",), congestion_control="dctcp")
    made = build_replays(asked, tmp_path)
    assert len(made) == 2  # two labels, whose flows need not be the same
    assert all("control dcqcn: dctcp with" in " ".join(item.notes) for item in made)
    for item in made:
        campaign = load_campaign(item.file)
        assert sorted(trial.repeat for trial in campaign.trials) == [1, 2]
        for trial in run(campaign, tmp_path):
            origin = read_trial(folder / trial.spec.parent.split()[0].removeprefix("others/"))
            assert_same_tables(origin, trial, "schedule")
            assert trial.stamp.valid


def test_arms_of_a_run_are_replayed_as_the_arms_of_one_campaign(tmp_path):
    arms = (
        "arms:\n"
        "  quick: {{host.min_rto: 1ms, tuners: [secn1]}}\n"
        "  slow: {{host.min_rto: 9ms, tuners: [secn1]}}\n"
        "judge: fct_p99\n"
        "factors: {{action_period: [100us, 200us]}}\n"
    )
    tuners, host, period = (f"{PARENT.splitlines()[number]}\n" for number in (3, 15, 13))
    assert (tuners[:6], host[:4], period[:6]) == ("tuners", "host", "action")
    text = PARENT.replace(tuners, arms).replace(host, "").replace(period, "")
    (tmp_path / "old.yml").write_text(text.format(testbed="rlcc-7", faults="[]"), encoding="utf-8")
    old = load_campaign(tmp_path / "old.yml")
    recorded = run(old, tmp_path)
    (tmp_path / "old" / "campaign.yml").write_text(old.source, encoding="utf-8")
    replays = build_replays(ReplayRequest(tmp_path / "old"), tmp_path)
    assert [replay.file.parent.name for replay in replays] == [
        "old-action-period-100us-replay-fluid.inputs",
        "old-action-period-200us-replay-fluid.inputs",
    ]
    for replay in replays:
        again = load_campaign(replay.file)
        assert (again.question.compare, again.question.arms) == ("arm", ("quick", "slow"))
        assert again.question.judge == ("fct_p99",)
        for trial in run(again, tmp_path):
            name = trial.spec.parent.partition(" ")[0].rpartition("/")[2]
            (original,) = (one for one in recorded if one.folder.name == name)
            assert trial.spec.cell["arm"] == original.spec.cell["arm"]
            assert trial.spec.host == original.spec.host
            assert trial.spec.action_period_ns == original.spec.action_period_ns
            flows = (one.folder / "flows.parquet" for one in (trial, original))
            first, second = (read_table(path, "flows") for path in flows)
            assert all(np.array_equal(first[key], second[key]) for key in first)


def test_an_arm_that_a_replay_does_not_have_is_refused(old, tmp_path):
    (replay,) = build_replays(ReplayRequest(old, trials="secn1-*"), tmp_path)
    text = replay.file.read_text(encoding="utf-8")
    replay.file.write_text(text.replace("- {tuner:", "- {arm: quick, tuner:"), encoding="utf-8")
    with pytest.raises(InputError, match="no arm 'quick' in this campaign"):
        load_campaign(replay.file)
