"""`closloop train` on the fluid backend: what it learns, repeats, resumes and refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from orchestration.core.errors import InputError, TrialError
from orchestration.run import backend_factory
from orchestration.training.request import SCENARIOS, Episodes, TrainRequest, find_scenario
from orchestration.training.train import train
from tuners.learning.checkpoint import load

SCENARIO = """\
campaign: small
testbed: rlcc-7
tuners: [secn1]
traffic:
  - {kind: incast, fan_in: 3, size: 2MB, period: 2ms}
duration: 4ms
drain: 1ms
"""


@pytest.fixture
def scenario(tmp_path) -> str:
    path = tmp_path / "small.yml"
    path.write_text(SCENARIO)
    return str(path)


def run(scenario, folder, tuner="acc", episodes=4, **more) -> Path:
    request = TrainRequest(tuner, scenario, "fluid", episodes=episodes, **more)
    return train(request, backend_factory.backend("fluid"), folder, 2, lambda round_, all_: None)


@pytest.mark.slow
@pytest.mark.parametrize("tuner", ["acc", "pet", "graphcc"])
def test_the_same_seed_gives_the_same_network(tuner, scenario, tmp_path):
    one = run(scenario, tmp_path / "one", tuner).read_bytes()
    assert one == run(scenario, tmp_path / "other", tuner).read_bytes()
    assert one != run(scenario, tmp_path / "third", tuner, seed=2).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("tuner", ["acc", "pet", "graphcc"])
def test_a_resumed_training_ends_with_the_same_network(tuner, scenario, tmp_path):
    whole = run(scenario, tmp_path / "whole", tuner, episodes=6)
    run(scenario, tmp_path / "parts", tuner, episodes=2)
    parts = run(scenario, tmp_path / "parts", tuner, episodes=6)
    assert whole.read_bytes() == parts.read_bytes()
    assert load(str(parts)).card["episodes"] == 6
    assert len((tmp_path / "parts/curve.csv").read_text().splitlines()) == 1 + 3


@pytest.mark.slow
def test_a_killed_training_goes_on(scenario, tmp_path):
    folder = tmp_path / "killed"
    command = [
        *(sys.executable, "-c", "from orchestration.cli.main import main; main()", "train", "acc"),
        *("--scenario", scenario, "--on", "fluid", "--episodes", "16", "--out", str(folder)),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (folder / "state.safetensors").exists() or not (folder / "work").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    resumed = run(scenario, folder, episodes=16)
    assert resumed.read_bytes() == run(scenario, tmp_path / "whole", episodes=16).read_bytes()


@pytest.mark.slow
def test_networks_per_switch_are_apart(scenario, tmp_path):
    path = run(scenario, tmp_path / "own", per_switch=True)
    found = load(str(path))
    assert len(found.arrays["q.0.weight"]) == len(found.card["switches"])


@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint(scenario, tmp_path):
    first = run(scenario, tmp_path / "first")
    second = run(scenario, tmp_path / "second", init=str(first), seed=5, episodes=2)
    third = run(scenario, tmp_path / "third", seed=5, episodes=2)
    assert second.read_bytes() != third.read_bytes()


@pytest.mark.slow
def test_a_folder_of_another_training_is_left_alone(scenario, tmp_path):
    run(scenario, tmp_path / "one", episodes=2)
    with pytest.raises(InputError, match="another request"):
        run(scenario, tmp_path / "one", episodes=2, seed=9)


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_network(
    scenario, tmp_path, monkeypatch
):
    folder = tmp_path / "nan"
    good = run(scenario, folder, episodes=2).read_bytes()
    from tuners.learning import q_learning

    monkeypatch.setattr(q_learning, "ddqn_target", lambda reward, *rest: reward * np.nan)
    with pytest.raises(TrialError, match="the loss is nan") as caught:
        run(scenario, folder, episodes=4)
    assert "last good checkpoint is kept" in caught.value.remedy
    assert (folder / "checkpoint.safetensors").read_bytes() == good


@pytest.mark.slow
def test_an_observation_that_is_no_number_stops_training(scenario, tmp_path, monkeypatch):
    from tuners.ecn import features

    monkeypatch.setattr(features, "size_feature", lambda size: size * np.nan)
    with pytest.raises(TrialError, match="no number for 'queue'"):
        run(scenario, tmp_path / "nan", episodes=2)
    assert load(str(tmp_path / "nan/checkpoint.safetensors")).card["episodes"] == 0


def test_seeds_of_training_are_no_seeds_of_evaluation(scenario):
    from orchestration.campaign.expand import trial_seed

    episodes = Episodes(TrainRequest("acc", scenario, "fluid"))
    trained = {episodes[number].seed for number in range(200)}
    judged = {trial_seed(seed, repeat) for seed in range(20) for repeat in range(200)}
    assert len(trained) == 200
    assert not trained & judged


@pytest.mark.slow
def test_the_card_says_how_to_make_the_network_again(scenario, tmp_path):
    path = run(scenario, tmp_path / "one", episodes=2)
    card = json.loads(path.with_suffix(".json").read_text())
    assert card["scenario"] == SCENARIO
    assert card["request"]["seed"] == 1
    assert [row[0] for row in card["curve"]] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", sorted(path.stem for path in SCENARIOS.glob("*.yml")))
def test_packaged_scenarios_have_episodes(scenario):
    tuner = "drlet" if scenario == "drlet-k8" else scenario
    episodes = Episodes(TrainRequest(tuner, find_scenario(scenario)))
    assert episodes.backend == "emulated"
    assert episodes[0].seed != episodes[1].seed


def test_the_example_that_asks_why_is_a_campaign():
    from orchestration.campaign.expand import load_campaign

    campaign = load_campaign(Path(__file__).parents[2] / "examples" / "why-graphcc.yml")
    assert len(campaign.trials) == 60
