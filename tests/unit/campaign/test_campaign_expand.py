"""Expansion: the full cross, paired seeds, random blocks, and any junk ending in an InputError."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory.files import load_testbed
from orchestration.campaign.expand import Campaign, load_campaign, trial_seed
from orchestration.campaign.rotation import describe_rotation
from orchestration.core.errors import InputError, Problem
from orchestration.core.trial import CHECKPOINT, TrialSpec
from tuners.learning.checkpoint import PRETRAINED

Load = Callable[..., Campaign]
PFC = Path(__file__).parents[3] / "examples" / "papers" / "testbeds" / "graphcc-pfc.yml"


BASE: dict[str, Any] = {
    "campaign": "test",
    "testbed": "graphcc",
    "backend": "fluid",
    "tuners": ["secn1"],
    "traffic": [{"kind": "poisson", "workload": "WebSearch", "load": 0.6}],
    "duration": "10ms",
    "repeats": 1,
}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def from_fields(on: str | None = None, times: int | None = None, **fields: Any) -> Campaign:
        file = tmp_path / "c.yml"
        # Each value as JSON, which is YAML; a field a line, as people write it.
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in {**BASE, **fields}.items()]
        file.write_text("".join(lines), encoding="utf-8")
        return load_campaign(file, backend=on, repeats=times)

    return from_fields


FACTORS: dict[str, Any] = {
    "tuners": ["secn1", "secn2"],
    "traffic": [{"kind": "poisson", "workload": "WebSearch", "load": "$load"}],
    "factors": {"load": [0.3, 0.6, 0.9]},
}


def test_all_cells_of_a_repeat_share_a_seed_and_no_two_repeats_do(load: Load) -> None:
    trials = load(repeats=4, **FACTORS).trials
    seeds = {repeat: {t.seed for t in trials if t.repeat == repeat} for repeat in range(1, 5)}
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == 4


def test_seeds_do_not_depend_on_what_else_the_campaign_has(load: Load) -> None:
    alone = load(repeats=2, tuners=["secn2"], testbed="rlcc-7").trials
    crossed = load(repeats=2, **FACTORS).trials
    assert {(t.repeat, t.seed) for t in alone} == {(t.repeat, t.seed) for t in crossed}


def test_seeds_differ_by_campaign_seed_and_by_purpose() -> None:
    seeds = {
        trial_seed(campaign_seed, repeat, purpose)
        for campaign_seed in (0, 1, 2**40)
        for repeat in range(1, 50)
        for purpose in ("evaluation", "training")
    }
    assert len(seeds) == 3 * 49 * 2
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_seeds_stay_what_they_were() -> None:
    """A change here makes new results incomparable with those that users have."""
    assert trial_seed(1, 1) == 8182909195106863
    assert trial_seed(1, 2) == 2853521629567453


def test_each_version_of_the_protocol_has_evaluation_seeds_of_its_own(load: Load) -> None:
    def drawn(**fields: Any) -> list[tuple[int, str]]:
        return [(trial.seed, trial.id) for trial in load(repeats=20, **fields).trials]

    ordinary = drawn()
    assert drawn(protocol=1) == ordinary
    second = {seed for seed, _ in drawn(protocol=2)}
    others = ("evaluation", "training", "held-out", "search")
    seen = {trial_seed(1, number, stream) for stream in others for number in range(300)}
    assert len(second) == 20
    assert not second & seen


PACKAGED = "acc-dctcp-2"
OWN = ["a.safetensors", PACKAGED, "b.safetensors"]
TURNS = {"name": "acc", "label": "mine", "checkpoint": OWN}


def test_checkpoints_take_turns_over_repeats_alike_in_all_cells(load: Load, tmp_path: Path) -> None:
    for name in ("a", "b"):
        for end in ("safetensors", "json"):
            shutil.copy(PRETRAINED / f"acc-dctcp-1.{end}", tmp_path / f"{name}.{end}")
    fields = {**FACTORS, "tuners": ["secn1", TURNS]}
    trials = [t for t in load(repeats=7, **fields).trials if t.tuner.name == "acc"]
    paths = [str(tmp_path / "a.safetensors"), PACKAGED, str(tmp_path / "b.safetensors")]
    had = {(t.repeat, t.tuner.params["checkpoint"]) for t in trials}
    assert had == {(k, paths[(k - 1) % 3]) for k in range(1, 8)}
    assert {t.cell["tuner"] for t in trials} == {"mine"}
    assert len({t.id for t in trials}) == len(trials) == 21
    assert describe_rotation(trials) == [
        "mine: 3 checkpoints in rotation, some have more repeats and more weight: "
        f"{paths[0]} (repeats 1, 4, 7), {PACKAGED} (repeats 2, 5), {paths[2]} (repeats 3, 6)"
    ]
    alone = load(repeats=1, **{**fields, "tuners": [{**TURNS, "checkpoint": "a.safetensors"}]})
    assert {t.id for t in alone.trials} <= {t.id for t in trials}


def test_each_checkpoint_of_a_list_is_checked(load: Load) -> None:
    with pytest.raises(InputError) as caught:
        load(tuners=[{"name": "acc", "checkpoint": ["acc-dctcp-1", "pet-dctcp-1", "gone"]}])
    assert [re.sub(r".*pretrained/", "", item.what) for item in caught.value.problems] == [
        "pet-dctcp-1.safetensors was trained for tuner 'pet', not 'acc'",
        "no checkpoint 'gone'",
    ]


@pytest.mark.parametrize(
    ("control", "network"),
    [("dctcp", "acc-dctcp-1"), ("dcqcn", "acc-dcqcn-1"), ("cubic", None)],
)
def test_a_network_that_none_names_is_of_the_hosts_congestion_control(
    load: Load, control: str, network: str | None
) -> None:
    named = {"name": "acc", "label": "named", "checkpoint": "acc-dctcp-3"}
    host = {"congestion_control": control}
    roce = {"testbed": str(PFC), "on": "emulated", "fabric": "closloop"}
    fields = roce if control == "dcqcn" else {"on": "emulated"}
    tuners = ["acc", named, {"name": "random", "of": "acc"}]
    trials = load(tuners=tuners, repeats=1, host=host, **fields).trials
    found = {trial.cell["tuner"]: trial.tuner.params.get("checkpoint") for trial in trials}
    assert found == {"acc": network, "named": "acc-dctcp-3", "random": None}
    (own,) = [trial for trial in trials if trial.cell["tuner"] == "acc"]
    assert f"{CHECKPOINT}{network or 'acc-dctcp-1'}" in own.files


def test_order_is_random_by_block_and_repeatable(load: Load) -> None:
    def orders(seed: int) -> list[list[str]]:
        trials = load(seed=seed, repeats=6, **FACTORS).trials
        return [[str(t.cell) for t in trials[at : at + 6]] for at in range(0, 36, 6)]

    first = orders(1)
    assert first == orders(1)
    assert first != orders(2)
    assert len({tuple(block) for block in first}) > 1
    assert all(sorted(block) == sorted(first[0]) for block in first)


def test_arms_of_a_condition_are_next_to_each_other_only_by_chance(load: Load) -> None:
    # three arms under two conditions: of each trial's five others, two are of its condition
    fields = {
        "traffic": FACTORS["traffic"],
        "factors": {"load": [0.3, 0.6]},
        "arms": {f"rto-{rto}": {"host.min_rto": f"{rto}ms"} for rto in (1, 2, 4)},
    }
    trials = load(repeats=300, **fields).trials
    blocks = [trials[at : at + 6] for at in range(0, len(trials), 6)]
    assert all({len({str(t.cell) for t in block}), len(block)} == {6} for block in blocks)
    alike = [
        first.cell["load"] == second.cell["load"]
        for block in blocks
        for first, second in itertools.pairwise(block)
    ]
    assert sum(alike) / len(alike) == pytest.approx(2 / 5, abs=0.03)
    firsts = [str(block[0].cell["arm"]) for block in blocks]
    assert all(firsts.count(arm) / 300 == pytest.approx(1 / 3, abs=0.1) for arm in set(firsts))


def test_more_repeats_keep_the_trials_that_are_done(load: Load) -> None:
    few, more = load(repeats=2, **FACTORS).trials, load(repeats=3, **FACTORS).trials
    assert [t.id for t in more[: len(few)]] == [t.id for t in few]


def test_cells_stand_in_the_order_of_the_file(load: Load) -> None:
    cells = load(**FACTORS).cells
    assert [tuple(cell.values()) for cell in cells] == [
        (tuner, level) for level in (0.3, 0.6, 0.9) for tuner in ("secn1", "secn2")
    ]


@pytest.mark.slow
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    loads=st.lists(st.integers(1, 100).map(lambda n: n / 100), min_size=1, max_size=3, unique=True),
    rtos=st.lists(st.integers(1, 50), min_size=1, max_size=3, unique=True),
    tuners=st.sets(st.sampled_from(["secn1", "secn2"]), min_size=1),
    repeats=st.integers(1, 4),
    seed=st.integers(0, 2**64),
)
def test_expansion_is_the_full_cross_in_complete_blocks(
    load: Load, loads: list[float], rtos: list[int], tuners: set[str], repeats: int, seed: int
) -> None:
    campaign = load(
        tuners=sorted(tuners),
        traffic=FACTORS["traffic"],
        host={"min_rto": "$rto"},
        factors={"load": loads, "rto": [f"{rto}ms" for rto in rtos]},
        repeats=repeats,
        seed=seed,
    )
    size = len(loads) * len(rtos) * len(tuners)
    assert len(campaign.trials) == size * repeats
    assert len({trial.id for trial in campaign.trials}) == size * repeats
    for number in range(repeats):
        block = campaign.trials[number * size : (number + 1) * size]
        assert {trial.repeat for trial in block} == {number + 1}
        assert len({str(trial.cell) for trial in block}) == size
    for trial in campaign.trials:
        assert trial.traffic[0].load == trial.cell["load"]  # type: ignore[union-attr]
        assert f"{trial.host.min_rto_ns // 10**6}ms" == trial.cell["rto"]
        assert TrialSpec.from_json(json.loads(json.dumps(trial.to_json()))) == trial


def test_none_says_a_default_as_a_value_and_as_a_level(load: Load) -> None:
    """It makes the trial of a file without the field, also where a setting would be unused."""
    dcqcn = {"congestion_control": "dcqcn"}
    incast = {"kind": "incast", "fan_in": 8, "size": "64KB", "period": "1ms"}
    (without,) = load(host=dcqcn, traffic=[incast], on="emulated").trials
    nothing = {"roce": {"window": "$window", "rtt_probe_interval": "none"}}
    trials = load(
        host={**dcqcn, **nothing},
        traffic=[{**incast, "receiver": "none", "stop": "none", "congestion_control": "none"}],
        factors={"window": ["none", "bdp"]},
        flow_sample_period="none",
        on="emulated",
    ).trials
    same, limited = sorted(trials, key=lambda trial: str(trial.cell["window"]) == "bdp")
    assert replace(same, cell=without.cell) == without
    assert limited.host.roce != without.host.roce


def test_overrides_stand_in_for_the_files_own(load: Load) -> None:
    campaign = load(times=3, on="emulated")
    assert len(campaign.trials) == 3
    assert {trial.backend for trial in campaign.trials} == {"emulated"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"on": "imported"}, "--on: no campaign runs on backend 'imported'"),
        ({"on": "flui"}, "--on: unknown backend 'flui'\n  -> did you mean 'fluid'?"),
        ({"times": 0}, "--repeats: 0 repeats\n  -> use 1 or more"),
    ],
)
def test_wrong_overrides_are_refused(load: Load, override: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(**override)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2


def test_the_source_is_kept_to_the_letter(load: Load, tmp_path: Path) -> None:
    campaign = load()
    assert campaign.source == campaign.path.read_text(encoding="utf-8")


def test_a_wrong_file_leaves_nothing_behind(load: Load, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load(testbed="nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["c.yml"]


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["$load", "$", "$x y", "10ms", "0ns", "64KB", "0.5", "h1", "none", "leaf1-spine1"]
    ),
    st.lists(st.integers(-1, 1), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(0, 1), max_size=2),
)
WHOLE: dict[str, Any] = {
    **FACTORS,
    "tuners": ["secn1", {"name": "static", "kmin_bytes": "5KB", "kmax_bytes": "9KB"}],
    "traffic": [
        *FACTORS["traffic"],
        {"kind": "incast", "fan_in": 4, "size": "64KB", "period": "2ms", "receiver": "h1"},
        {"kind": "flow", "src": "h1", "dst": "h2", "size": "1MB", "start": "1ms"},
    ],
    "faults": [{"links": ["leaf1-spine1"], "down": "1ms", "up": "2ms", "convergence": "1ms"}],
    "host": {"congestion_control": "dctcp", "min_rto": "1ms"},
    "sample_period": "100us",
    "action_period": "200us",
    "drain": "20ms",
}


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else ()
    inner = list(enumerate(value)) if isinstance(value, list) else list(items)
    return [*([here] if here else []), *(p for key, v in inner for p in paths(v, (*here, key)))]


@pytest.mark.slow
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(path=st.sampled_from(paths(WHOLE)), junk=JUNK)
def test_junk_anywhere_is_accepted_or_refused_with_its_line(
    load: Load, path: tuple[Any, ...], junk: Any
) -> None:
    fields = json.loads(json.dumps(WHOLE))
    target = fields
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = junk
    problems: tuple[Problem, ...] = ()
    try:
        load(**fields)
    except InputError as error:
        problems = error.problems
    assert all(re.search(r"c\.yml:\d+$", problem.where) for problem in problems)


def test_a_changed_file_of_the_users_is_another_trial(load: Load, tmp_path: Path) -> None:
    table = tmp_path / "sizes.csv"
    traffic = [{"kind": "poisson", "workload": "sizes.csv", "load": 0.6}]
    ids = []
    for last in (2000, 3000, 2000):
        table.write_text(f"bytes,cdf\n0,0\n{last},1\n", encoding="utf-8")
        (trial,) = load(traffic=traffic).trials
        ids.append(trial.id)
    assert ids[0] == ids[2]
    assert ids[0] != ids[1]


def test_a_testbed_with_replaced_fields_is_in_the_trial_whole(load: Load, tmp_path: Path) -> None:
    """It is known by its name, and by the digest of the file that it is like."""
    own = tmp_path / "own.yml"
    ids = {}
    for buffer in ("4MB", "5MB"):
        own.write_text(f"like: graphcc\nname: own\nbuffer: {buffer}\n", encoding="utf-8")
        for testbed in ("own.yml", {"like": "own.yml"}, {"like": "own.yml", "mtu": "9000B"}):
            (trial,) = load(testbed=testbed).trials
            assert list(trial.files) == [str(own)]
            ids[trial.id] = trial.testbed
            (found,) = load(testbed=testbed).testbeds.values()
            assert found == load_testbed(trial.testbed)
    assert sorted(ids.values()) == [f"{own}"] * 2 + [f"{own} {{mtu: 9000B}}"] * 2
