"""The environment passes the API tests of those who defined the API, on every backend."""

import dataclasses
import gc
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from orchestration.environment import FabricEnv, FabricParallelEnv
from tests.trials import trial_spec
from traffic.patterns.incast import IncastSpec

MS = 1_000_000
FIELDS = {
    "campaign": "environment",
    "testbed": "rlcc-7",
    "traffic": (IncastSpec(6, 500_000, MS, 0, MS, receiver="h1"),),
    "seed": 3,
    "duration_ns": MS // 2,
    "drain_ns": 20 * MS,
    "decision_latency_ns": 50_000,
}
QUEUE = "switch1:eth0"


@pytest.fixture
def trial(engine):
    """A trial that an environment runs in the engine: it chooses as `closloop run` does."""
    return trial_spec(**FIELDS, **engine.fields)


@pytest.fixture(autouse=True)
def strict():
    """What the checkers only warn of is an error, but for what is meant to be as it is."""
    with warnings.catch_warnings():
        # what other tests of this process have left to the garbage collector is not judged here
        gc.collect()
        warnings.simplefilter("error")
        # Rows of features a queue: flattened by the algorithms that want it so.
        warnings.filterwarnings("ignore", message=".*unconventional shape")
        yield


def test_pettingzoo(trial):
    env = FabricParallelEnv(trial)
    parallel_api_test(env, num_cycles=5)
    env.close()


@pytest.mark.parametrize("queue", [None, QUEUE])
def test_gymnasium(trial, queue):
    env = FabricEnv(trial, queue=queue)
    check_env(env)
    env.close()


def test_stable_baselines3(trial):
    env = FabricEnv(trial)
    sb3_check_env(env)
    env.close()


def test_an_episode_lasts_the_trials_duration(trial):
    incast = dataclasses.replace(trial.traffic[0], size_bytes=5_000_000)
    env = FabricEnv(dataclasses.replace(trial, traffic=(incast,)), queue=QUEUE)
    _, info = env.reset()
    steps, ended = [info["t_ns"]], False
    while not ended:
        *_, terminated, ended, info = env.step(0)
        assert not terminated
        steps.append(info["t_ns"])
    np.testing.assert_allclose(steps, np.arange(1, 6) * 100_000, atol=2_000)


def test_it_is_terminated_when_every_flow_has_ended(trial):
    trial = dataclasses.replace(trial, duration_ns=20 * MS)
    env = FabricParallelEnv(trial)
    env.reset()
    while env.agents:
        actions = dict.fromkeys(env.agents, 0)
        _, _, terminated, truncated, infos = env.step(actions)
    assert all(terminated.values())
    assert not any(truncated.values())
    # 6 flows of 500 KB to h1, whose queue the last reading shows empty again, as it was set
    info = infos[QUEUE]
    assert info["tx_bytes"] > 6 * 500_000
    assert info["qlen_bytes"] == 0
    assert (info["kmin_bytes"], info["kmax_bytes"]) == (2_000, 16_000)


def test_an_action_sets_its_queue_and_no_other(trial):
    env = FabricEnv(trial, queue=QUEUE)
    whole = FabricEnv(trial)
    whole.reset()
    choice = np.zeros(len(whole.action_space.nvec), dtype=np.int64)
    choice[2] = 119
    *_, info = whole.step(choice)
    assert info["kmin_bytes"].tolist() == [32_000 if n == 2 else 2_000 for n in range(len(choice))]
    assert info["kmax_bytes"][2] == 256_000
    whole.close()

    env.reset()
    *_, info = env.step(119)
    assert (info["kmin_bytes"], info["kmax_bytes"]) == (32_000, 256_000)
    assert info["pmax"] == pytest.approx(1.0)
    env.close()
