"""Trainings and environments run in the engine that their agents need, and keep it."""

import dataclasses

import numpy as np
import pytest

from closloop import EnvironmentSettings, FabricParallelEnv
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.backends.emulated.process_backend import ProcessBackend
from orchestration.core.engines import KERNEL, PROCESS
from orchestration.core.errors import InputError
from orchestration.environment.episode import EpisodeSource
from orchestration.training.evaluation import backend_for
from orchestration.training.files import TrainingFolder
from orchestration.training.protocol import load_protocol
from orchestration.training.request import TrainRequest, find_scenario
from tuners.ecn.features import observed_by

SCENARIO = """\
campaign: small
testbed: rlcc-7
backend: emulated
host: {congestion_control: dcqcn}
tuners: [secn1]
traffic: [{kind: incast, fan_in: 6, size: 1MB, period: 1ms, receiver: h1}]
duration: 1ms
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.yml"
    path.write_text(SCENARIO)
    return str(path)


@pytest.mark.parametrize(
    ("tuner", "scenario", "kind"),
    [
        ("graphcc", "ecn-dcqcn", ProcessBackend),
        ("pet", "ecn-dcqcn", EmulatedBackend),  # it observes flow tables
        ("graphcc", "ecn-dctcp", EmulatedBackend),
    ],
)
def test_a_training_runs_in_the_process_if_all_its_trials_can(tuner, scenario, kind):
    request = TrainRequest(tuner, find_scenario(scenario))
    assert type(backend_for(request)) is kind
    held_out = find_scenario("ecn-dctcp-held-out")
    rule = load_protocol().rule(tuner, held_out, 0)
    assert type(backend_for(dataclasses.replace(request, rule=rule))) is EmulatedBackend


def test_the_engine_of_a_training_can_be_named_and_is_no_part_of_the_request(scenario):
    request = TrainRequest("graphcc", scenario, engine=KERNEL)
    assert type(backend_for(request)) is EmulatedBackend
    assert request.to_json() == TrainRequest("graphcc", scenario).to_json()
    tcp = TrainRequest("graphcc", find_scenario("ecn-dctcp"), engine=PROCESS)
    with pytest.raises(InputError, match="--in process: these trials need the kernel"):
        backend_for(tcp)


def test_a_training_is_not_resumed_in_another_engine(scenario, tmp_path):
    request = TrainRequest("graphcc", scenario)
    folder = TrainingFolder(tmp_path / "training", by_rule=False)
    assert not folder.open(request, SCENARIO, "", PROCESS)
    assert not folder.open(request, SCENARIO, "", PROCESS)  # nothing was saved yet
    with pytest.raises(InputError, match="go on with --in process, or begin anew with --fresh"):
        folder.open(request, SCENARIO, "", KERNEL)


def test_an_environment_steps_the_fabric_in_the_process(scenario):
    def rewards(seed):
        env = FabricParallelEnv(scenario)
        env.reset(seed=seed)
        made = []
        while env.agents:
            _, reward, _, _, _ = env.step(dict.fromkeys(env.agents, 0))
            made.append(list(reward.values()))
        return np.array(made)

    first = rewards(3)
    assert first.shape[0] >= 8
    assert first.std() > 0
    np.testing.assert_array_equal(first, rewards(3))
    source = EpisodeSource(scenario, None, 1)
    assert source.engine(observed_by(EnvironmentSettings().features), {"ecn"}) == PROCESS
    assert source.engine(observed_by(("queue", "incast")), {"ecn"}) == KERNEL
