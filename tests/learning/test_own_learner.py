"""A learner of one's own: the docs' example, trained, interrupted, and used in a campaign."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import closloop
from orchestration.core.errors import InputError, Interrupted
from orchestration.run import backend_factory
from orchestration.training.request import TrainRequest, acting_tuner, split_settings
from orchestration.training.train import train
from tuners.learning.checkpoint import load

ROOT = Path(__file__).parents[2]
CLIMB = (ROOT / "examples" / "climb.py").read_text()
SCENARIO = """\
campaign: scenario
testbed: graphcc
backend: fluid
tuners: [{tuner}]
traffic: [{{kind: poisson, workload: WebSearch, load: 0.5}}]
duration: 2ms
repeats: 1
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("climb.py").write_text(CLIMB)
    Path("scenario.yml").write_text(SCENARIO.format(tuner="secn1"))


def command(*more):
    arguments = [
        "train",
        "climb.py:Climb",
        "--scenario",
        "scenario.yml",
        "--on",
        "fluid",
        "-j",
        "1",
        *more,
    ]
    return subprocess.run(
        [sys.executable, "-c", "from orchestration.cli.main import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
def test_it_trains_from_the_command_line_and_acts_in_a_campaign():
    done = command("--episodes", "4", "--set", "step=0.7")
    assert done.returncode == 0, done.stderr
    path = Path("runs/train/Climb/checkpoint.safetensors")
    card = json.loads(path.with_suffix(".json").read_text())
    assert (card["tuner"], card["episodes"]) == ("Level", 4)
    assert card["architecture"] == {"network": "a number"}
    assert card["request"]["settings"] == {"step": 0.7}
    assert set(card["request"]["files"]) == {"climb.py"}
    assert load(str(path)).arrays["kmax"][0] != 200_000

    tuner = "{name: climb.py:Level, checkpoint: runs/train/Climb/checkpoint.safetensors}"
    Path("campaign.yml").write_text(SCENARIO.format(tuner=tuner))
    assert closloop.run("campaign.yml", jobs=1).exit_code == 0


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_network():
    request = TrainRequest(
        acting_tuner("climb.py:Climb"), "scenario.yml", episodes=6, learner="climb.py:Climb"
    )
    backend = backend_factory.backend("fluid")
    whole = train(request, backend, Path("whole"), 1, lambda done, total: None)

    def interrupt(done, total):
        if done.episodes == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(request, backend, Path("parts"), 1, interrupt)
    parts = train(request, backend, Path("parts"), 1, lambda done, total: None)
    assert parts.read_bytes() == whole.read_bytes()

    Path("climb.py").write_text(CLIMB.replace("200_000.0", "100_000.0"))
    with pytest.raises(InputError, match="another request"):
        train(dataclasses.replace(request), backend, Path("parts"), 1, lambda done, total: None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def learn(", "def lern(", "it has no learn"),
        ("class Climb:", "class Other:", "climb.py has no 'Climb'"),
        ('"climb.py:Level"', '"leave.py:Level"', "there is no file"),
        ("    collect: bool = False\n", "", "has no parameter 'collect', which training needs"),
        ("settings = Settings ", "settings = 3 ", "is no learner"),
        ("import numpy", "import numpie", "cannot be imported"),
    ],
)
def test_a_bad_one_is_refused_with_what_is_wrong(old, new, message, tmp_path):
    assert old in CLIMB
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "climb.py").write_text(CLIMB.replace(old, new))
    with pytest.raises(InputError) as caught:
        split_settings("bad/climb.py:Climb", {})
    assert message in str(caught.value)


@pytest.mark.slow
def test_settings_and_scenarios_of_ones_own_are_asked_for():
    assert split_settings("climb.py:Climb", {"step": 1}) == ({"step": 1.0}, {})
    with pytest.raises(InputError, match="known are step"):
        split_settings("climb.py:Climb", {"stride": 1})
    done = command()
    assert (done.returncode, "without the protocol, with --episodes" in done.stderr) == (2, True)
