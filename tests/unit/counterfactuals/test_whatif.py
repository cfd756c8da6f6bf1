"""Counterfactuals on the fluid backend, where the same trial gives the same tables to the bit."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from inventory.files import load_testbed
from orchestration.campaign.expand import load_campaign
from orchestration.cli.main import app
from orchestration.core.errors import InputError
from orchestration.core.knobs import ECN, FLOWLET_TIMEOUT
from orchestration.core.records import Observation
from orchestration.core.trial import REAL, TunerSpec
from orchestration.counterfactuals.ask import (
    UNCHANGED,
    PreparedQuestion,
    Variant,
    answer,
    build_counterfactuals,
    edited_actions,
    prepare,
)
from orchestration.counterfactuals.decisions import (
    Decision,
    Decisions,
    Target,
    find_target,
    parse_settings,
)
from orchestration.counterfactuals.effects import Paths, differing_tables, flow_changes, totals
from orchestration.counterfactuals.question import Question
from orchestration.counterfactuals.rendering import answer_to_json
from orchestration.results.reader import TrialResult, read_trial
from tests.unit.replay.test_replay_runs import run
from tuners import registry

PARENT = """campaign: old
testbed: rlcc-7
backend: fluid
tuners: [secn1, graphcc]
traffic:
  - {kind: message-mix, load: 0.5, sizes: [1KB, 50KB], draw: independent}
  - {kind: incast, fan_in: 5, size: 200KB, period: 500us}
repeats: 1
duration: 1ms
drain: 30ms
decision_latency: 20us
"""
QUEUE = "switch1:eth0"


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> dict[str, TrialResult]:
    """Return the parents by tuner; tests that change one copy it."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "old.yml").write_text(PARENT, encoding="utf-8")
    trials = run(load_campaign(folder / "old.yml"), folder)
    return {trial.spec.tuner.name: trial for trial in trials}


def busiest(trial: TrialResult) -> str:
    queue = trial.ports.qlen_bytes.mean(axis=0).argmax()
    return trial.testbed.queues[int(queue)].label


def ask(of: TrialResult, out: Path, **changes) -> PreparedQuestion:
    given = {"at": "300us", "target": busiest(of), "settings": ("kmin=1KB",), **changes}
    return prepare(Question(of.folder, **given), out)


def ran(asked: PreparedQuestion, out: Path):
    campaign = load_campaign(asked.replay.file)
    run(campaign, out)
    return answer(asked, out / campaign.name)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["recorded", "tuner"])
@pytest.mark.parametrize(("tuner", "at"), [("secn1", "0ns"), ("graphcc", "300us")])
def test_an_unchanged_decision_gives_the_parent_to_the_bit(old, tmp_path, tuner, at, then):
    asked = ask(old[tuner], tmp_path, at=at, then=then, verify=True)
    found = ran(asked, tmp_path)
    assert found.verified == ()
    differing = differing_tables(old[tuner], found.trial)
    assert "actions.kmin_bytes" in differing
    assert "flows.end_ns" in differing


@pytest.mark.parametrize("then", ["recorded", "tuner"])
def test_a_setting_that_is_what_it_was_changes_nothing(old, tmp_path, then):
    trial = old["graphcc"]
    decision = Decisions(trial).find(find_target(trial.testbed, ECN, busiest(trial)), 300_000)
    same = tuple(f"{name}={value}" for name, value in decision.setting.items())
    found = ran(ask(trial, tmp_path, settings=same, then=then), tmp_path)
    assert differing_tables(trial, found.trial) == []
    assert totals(found.flows).changed == 0


def test_afterwards_the_record_or_the_tuner_decides(old, tmp_path):
    trial = old["graphcc"]
    label = busiest(trial)
    after = {}
    for then in ("recorded", "tuner"):
        asked = ask(
            trial,
            tmp_path,
            settings=("kmin=30KB", "kmax=400KB", "pmax=0.01"),
            lasts="200us",
            then=then,
            name=f"as-{then}",
        )
        found = ran(asked, tmp_path)
        target = find_target(trial.testbed, ECN, label)
        table = Decisions(found.trial).tables[ECN]
        own = target.rows(table)
        at = dict(zip(table["t_ns"][own].tolist(), table["kmax_bytes"][own].tolist(), strict=True))
        assert at[300_000] == 400_000
        assert at[500_000] != 400_000  # released when it is asked again
        after[then] = {t: kmax for t, kmax in at.items() if t > 500_000}
        # elsewhere nothing else is set, unless the tuner saw something else
        others = np.flatnonzero(table["device"] + ":" + table["port"] != label)
        before = Decisions(trial).tables[ECN]
        same = np.flatnonzero(before["device"] + ":" + before["port"] != label)
        if then == "recorded":
            for name in table:
                np.testing.assert_array_equal(table[name][others], before[name][same])
    recorded = Decisions(trial).tables[ECN]
    own = find_target(trial.testbed, ECN, label).rows(recorded)
    pairs = zip(recorded["t_ns"][own].tolist(), recorded["kmax_bytes"][own].tolist(), strict=True)
    assert after["recorded"] == {t: kmax for t, kmax in pairs if t > 500_000}


def test_the_answer_counts_flows_and_tells_of_the_queue(old, tmp_path):
    trial = old["secn1"]
    found = ran(ask(trial, tmp_path, at="0ns", settings=("kmin=0B", "kmax=0B", "pmax=1")), tmp_path)
    told = json.loads(json.dumps(answer_to_json(found, 3)))
    flows = flow_changes(trial, found.trial)
    delta = found.trial.table("flows")["fct_ns"] - trial.table("flows")["fct_ns"]
    assert told["flows"]["flows"] == len(delta)
    assert told["flows"]["changed"] == np.count_nonzero(delta) > 0
    assert told["flows"]["better"] + told["flows"]["worse"] == told["flows"]["changed"]
    assert told["flows"]["sum_fct_ns"] == delta.sum()
    assert told["flows"]["mean_slowdown"] == pytest.approx(
        (delta / trial.table("flows")["ideal_ns"]).mean()
    )
    first = told["most_changed"][0]
    assert first["after_ns"] - first["before_ns"] == delta[np.abs(delta).argmax()]
    assert len(told["most_changed"]) == 3
    assert told["queue"]["after"]["marked_packets"] > told["queue"]["before"]["marked_packets"]
    assert told["same_as_parent"] is None
    assert flows.running_between(0, 0).sum() < len(delta)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at": "350us"}, "nearest: 300us and 400us"),
        ({"at": "9s"}, "the nearest: "),
        ({"at": "soon"}, "--at"),
        ({"target": "leaf9:eth0"}, "no queue 'leaf9:eth0'"),
        ({"settings": ("kmin",)}, "is not a setting"),
        ({"settings": ("kmen=5KB",)}, "did you mean 'kmin'"),
        ({"settings": ("kmin=5KB", "timeout=1us")}, "sets ecn, flowlet_timeout"),
        ({"settings": ("timeout=1us",)}, "set no timeouts"),
        ({"settings": ("kmin=300KB", "kmax=200KB")}, "needs 0 <= kmin <= kmax"),
        ({"settings": ("kmax=1GB",)}, "the device would limit it to"),
        ({"lasts": "150us"}, "not a whole number"),
        ({"then": "me"}, "use recorded or tuner"),
        ({"trial": "x"}, "is the folder of one trial"),
    ],
)
def test_what_cannot_be_asked_is_refused(old, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        ask(old["graphcc"], tmp_path, **changes)
    assert not list(tmp_path.iterdir())


def test_a_fixed_setting_was_decided_on_once(old, tmp_path):
    with pytest.raises(InputError, match="the nearest: 0ns \\(it has one decision\\)"):
        ask(old["secn1"], tmp_path, at="300us")


def test_a_campaign_needs_the_name_of_one_trial(old, tmp_path):
    campaign = old["secn1"].folder.parent
    with pytest.raises(InputError, match="has 2 trials"):
        prepare(Question(campaign, "0ns", QUEUE, ("kmin=1KB",)), tmp_path)
    with pytest.raises(InputError, match=r"no trial of .* is called 'pet-"):
        prepare(Question(campaign, "0ns", QUEUE, ("kmin=1KB",), trial="pet-*"), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "hardware"}, "in real time"),
        ({"backend": "emulated", "clock": REAL}, "replay it in virtual time"),
        ({"backend": "imported"}, "was imported"),
    ],
)
def test_a_trial_that_cannot_be_repeated_is_refused(old, tmp_path, change, message):
    folder = tmp_path / old["secn1"].folder.name
    shutil.copytree(old["secn1"].folder, folder)
    data = json.loads((folder / "trial.json").read_text())
    data["spec"] |= change
    (folder / "trial.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        ask(read_trial(folder), tmp_path, at="0ns")


def test_an_invalid_trial_is_refused(old, tmp_path):
    folder = tmp_path / old["secn1"].folder.name
    shutil.copytree(old["secn1"].folder, folder)
    data = json.loads((folder / "trial.json").read_text())
    reason = {"code": "late", "severity": "invalid", "text": "a flow was late"}
    data["stamp"] |= {"valid": False, "reasons": [reason]}
    (folder / "trial.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="a flow was late"):
        ask(read_trial(folder), tmp_path, at="0ns")


def test_another_network_than_the_trial_had_is_not_asked_again(old, tmp_path):
    trial = old["graphcc"]
    file = tmp_path / "net.safetensors"
    file.write_text("another")
    spec = dataclasses.replace(trial.spec, files={str(file): "0" * 64})
    decisions = Decisions(dataclasses.replace(trial, spec=spec))
    decision = decisions.find(find_target(trial.testbed, ECN, busiest(trial)), 0)
    variant = Variant("a", decision, decision.setting)
    with pytest.raises(InputError, match="has changed since the trial"):
        build_counterfactuals(decisions, [variant], "x", tmp_path, then="tuner")


def table(*rows: tuple[int, str, int]) -> dict[str, np.ndarray]:
    """Return actions at ports of `s1`: time, port, kmin."""
    count = len(rows)
    return {
        "t_ns": np.array([row[0] for row in rows]),
        "device": np.array(["s1"] * count, dtype=object),
        "port": np.array([row[1] for row in rows], dtype=object),
        "queue": np.zeros(count, np.int16),
        "kmin_bytes": np.array([row[2] for row in rows]),
        "kmax_bytes": np.full(count, 99),
        "pmax": np.full(count, 0.5),
    }


def kmins(columns: dict[str, np.ndarray]) -> list[tuple[int, str, int]]:
    names = ("t_ns", "port", "kmin_bytes")
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


ROWS = ((0, "eth0", 1), (0, "eth1", 2), (100, "eth0", 3), (100, "eth1", 4), (300, "eth0", 5))


@pytest.mark.parametrize(
    ("at", "row", "now", "until", "expected"),
    [
        # in place of a row, until the next one
        (100, 2, 3, None, [(0, "eth0", 1), (100, "eth0", 7), (300, "eth0", 5)]),
        # of a decision to keep, a row comes in
        (
            200,
            None,
            3,
            None,
            [(0, "eth0", 1), (100, "eth0", 3), (200, "eth0", 7), (300, "eth0", 5)],
        ),
        # until a time: what the record has in force then comes back
        (100, 2, 3, 200, [(0, "eth0", 1), (100, "eth0", 7), (200, "eth0", 3), (300, "eth0", 5)]),
        (100, 2, 3, 300, [(0, "eth0", 1), (100, "eth0", 7), (300, "eth0", 5)]),
        (100, 2, 3, 400, [(0, "eth0", 1), (100, "eth0", 7), (400, "eth0", 5)]),
        (0, 0, 1, 200, [(0, "eth0", 7), (200, "eth0", 3), (300, "eth0", 5)]),
    ],
)
def test_an_edit_changes_one_decision(at, row, now, until, expected):
    target = Target(ECN, 0, "s1:eth0", ("s1", "eth0", 0))
    setting = {"kmin_bytes": now, "kmax_bytes": 99, "pmax": 0.5}
    decision = Decision(target, at, setting, row, None)
    before = table(*ROWS)
    made = edited_actions(before, decision, {**setting, "kmin_bytes": 7}, until)
    assert [each for each in kmins(made) if each[1] == "eth0"] == expected
    assert [each for each in kmins(made) if each[1] == "eth1"] == [ROWS[1], ROWS[3]]
    assert kmins(before) == list(ROWS)
    assert {name: values.dtype for name, values in made.items()} == {
        name: values.dtype for name, values in before.items()
    }
    unchanged = edited_actions(before, decision, setting, until)
    assert kmins(unchanged) == list(ROWS)


def test_settings_are_read_in_their_units():
    assert parse_settings(("kmin=5KB", "pmax=0.25")) == (
        ECN,
        {"kmin_bytes": 5_000, "pmax": 0.25},
    )
    assert parse_settings(("timeout=100us",)) == (FLOWLET_TIMEOUT, {"timeout_ns": 100_000})
    assert parse_settings(("timeout_ns=70",))[1] == {"timeout_ns": 70}


def test_a_queue_is_named_by_port_class_or_number():
    plain, classes = load_testbed("rlcc-7"), load_testbed("graphcc")
    assert find_target(plain, ECN, "switch1:eth1/0").label == "switch1:eth1"
    assert find_target(classes, ECN, "leaf1:eth0").index == 0


def test_paths_say_which_flows_can_pass():
    testbed = load_testbed("graphcc")
    paths = Paths(testbed)
    label = {queue.label: place for place, queue in enumerate(testbed.queues)}
    first, near, far = testbed.hosts[0], testbed.hosts[1], testbed.hosts[-1]
    down, up = label["leaf1:eth0"], label["leaf1:eth6"]
    assert paths.passes(down, far, first) == paths.passes(down, near, first) == "yes"
    assert paths.passes(down, far, near) == "no"
    assert paths.passes(up, first, far) == "maybe"
    assert paths.passes(up, first, near) == paths.passes(up, far, first) == "no"


class TestForced:
    """The tuner that is overruled."""

    TESTBED = load_testbed("rlcc-7")

    def made(self, tmp_path, *rows: str, tuner: str = "random"):
        path = tmp_path / "actions.csv"
        header = "t_ns,device,port,queue,kmin_bytes,kmax_bytes,pmax"
        path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
        params = {"tuner": tuner, "parameters": "{}", "actions": str(path)}
        return registry.create(TunerSpec("forced", params))

    def reading(self, t_ns: int) -> Observation:
        zeros = np.zeros(len(self.TESTBED.queues), dtype=np.int64)
        return Observation(t_ns, zeros, {"qlen_bytes": zeros})

    def played(self, tuner, *times: int) -> list[dict[int, tuple[float, ...]]]:
        """Return what was set at each queue: at the start, then at each time."""
        setup = tuner.reset(self.TESTBED, 5)
        actions = [setup.action, *(tuner.act(self.reading(t_ns)) for t_ns in times)]
        return [
            {
                target: tuple(change.values[name][row].item() for name in ECN.column_names)
                for change in action
                for row, target in enumerate(change.targets.tolist())
            }
            for action in actions
        ]

    def test_it_is_overruled_until_it_is_asked_again(self, tmp_path):
        switch = self.TESTBED.switches[0]
        forced = self.made(tmp_path, f"200,{switch},eth0,0,111,222,0.5")
        own = self.played(registry.create(TunerSpec("random", {})), 100, 200, 300)
        found = self.played(forced, 100, 200, 300)
        assert found[:2] == own[:2]
        assert found[2] == {**own[2], 0: (111, 222, 0.5)}
        last = [settings[0] for settings in own if 0 in settings][-1]
        assert found[3] == {**own[3], 0: last}

    def test_a_fixed_setting_stays_overruled(self, tmp_path):
        switch = self.TESTBED.switches[0]
        forced = self.made(tmp_path, f"200,{switch},eth1,0,111,222,0.5", tuner="secn2")
        own = self.played(registry.create(TunerSpec("secn2", {})))
        found = self.played(forced, 100, 200, 300, 400)
        assert found == [own[0], {}, {1: (111, 222, 0.5)}, {}, {}]

    def test_overruled_with_what_it_wants_it_says_the_same(self, tmp_path):
        own = self.played(registry.create(TunerSpec("random", {})), 100, 200, 300)
        wanted = [settings[0] for settings in own[:3] if 0 in settings][-1]
        low, high, maximum = wanted
        switch = self.TESTBED.switches[0]
        # as a device reads a probability back
        forced = self.made(tmp_path, f"200,{switch},eth0,0,{low},{high},{maximum - 9e-11}")
        found = self.played(forced, 100, 200, 300)
        assert [list(settings) for settings in found] == [list(settings) for settings in own]

    def test_it_is_the_tuner_in_digests_and_knows_bad_parameters(self, tmp_path):
        params = {"tuner": "acc", "parameters": '{"checkpoint": "acc-dcqcn-2"}', "actions": "a.csv"}
        assert registry.checkpoint_of("forced", params) == "acc-dcqcn-2"
        assert registry.recording_paths("forced", params) == {"actions": "a.csv"}
        assert "are no JSON object" in registry.check("forced", {"parameters": "["})[0].what
        assert "unknown tuner" in registry.check("forced", {"tuner": "acd"})[0].what


def test_the_label_of_the_unchanged_trial_is_its_own(old, tmp_path):
    asked = ask(old["secn1"], tmp_path, at="0ns", verify=True)
    labels = [cell["tuner"] for cell in load_campaign(asked.replay.file).cells]
    assert labels == ["secn1", f"secn1-{UNCHANGED}"]


def test_a_question_without_its_decision_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["whatif", str(tmp_path)])
    assert result.exit_code == 2
    assert "Missing option '--at'" in result.output
