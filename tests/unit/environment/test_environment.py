"""The environment over the fluid model: seeds, ends, errors, and what is left of a dropped one."""

import dataclasses
import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from pettingzoo.test import parallel_seed_test

from orchestration.campaign.expand import trial_seed
from orchestration.core.errors import InputError, TrialError
from orchestration.core.trial import HostSpec
from orchestration.environment import FabricEnv, FabricParallelEnv, Settings
from orchestration.environment.episode import EpisodeSource
from tests.trials import trial_spec
from traffic.patterns.incast import IncastSpec
from traffic.patterns.poisson import PoissonSpec
from tuners.ecn.features import PORT_FEATURES
from tuners.ecn.templates import product

ROOT = Path(__file__).parents[3]
MS = 1_000_000
TRIAL = trial_spec(
    campaign="environment",
    testbed="rlcc-7",
    traffic=(PoissonSpec("WebSearch", 0.5, 0, MS), IncastSpec(6, 500_000, MS, 0, MS)),
    seed=3,
    duration_ns=MS,
    drain_ns=20 * MS,
)
QUEUE = "switch1:eth0"
CAMPAIGN = """
campaign: cells
testbed: {testbed}
backend: fluid
tuners: [secn1, secn2]
traffic: [{{kind: poisson, workload: WebSearch, load: $load}}]
factors: {factors}
duration: 1ms
repeats: 2
"""


def running() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("closloop")]


def episode(env: FabricEnv, action: int = 0) -> list[float]:
    rewards, over = [], False
    while not over:
        _, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        over = terminated or truncated
    return rewards


def test_the_same_seed_gives_the_same_episodes():
    parallel_seed_test(lambda: FabricParallelEnv(TRIAL), num_cycles=5)
    env = FabricEnv(TRIAL, queue=QUEUE)
    runs = []
    for _ in range(2):
        env.reset(seed=7)
        first = episode(env)
        env.reset()
        runs.append((first, episode(env)))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_traffic_comes_from_training_seeds():
    source = EpisodeSource(TRIAL, "fluid", 5)
    seeds = [source.next().seed for _ in range(3)]
    assert seeds == [trial_seed(5, n, purpose="training") for n in (1, 2, 3)]
    assert TRIAL.seed not in seeds


def test_a_campaigns_cells_are_taken_in_turn(tmp_path):
    file = tmp_path / "c.yml"
    file.write_text(CAMPAIGN.format(testbed="rlcc-7", factors="{load: [0.3, 0.6]}"))
    source = EpisodeSource(file, None, 1)
    assert [source.next().traffic[0].load for _ in range(4)] == [0.3, 0.6, 0.3, 0.6]


def test_cells_of_two_fabrics_are_refused(tmp_path):
    file = tmp_path / "c.yml"
    factors = "{load: [0.3], bed: [rlcc-7, graphcc]}"
    file.write_text(CAMPAIGN.format(testbed="$bed", factors=factors))
    with pytest.raises(InputError, match="different testbeds"):
        FabricEnv(file)


def test_the_reward_is_of_what_the_action_led_to():
    """Marking everything keeps the receiver's queue shorter than marking nothing."""
    incast = IncastSpec(6, 2_000_000, MS, 0, MS, receiver="h1")
    trial = dataclasses.replace(TRIAL, traffic=(incast,))
    table = product([1_000, 4_000_000], [2_000, 4_000_000], [1.0], equal=True)
    env = FabricEnv(trial, queue=QUEUE, settings=Settings(templates=table))
    means = []
    for action in (0, len(table) - 1):
        env.reset(seed=1)
        means.append(np.mean(episode(env, action)))
    assert means[0] > means[1] + 0.1


def test_a_reward_and_features_of_ones_own():
    def reward(reading, utilisation):
        return -reading.qlen_mean_bytes

    settings = Settings(features=PORT_FEATURES, history=2, reward=reward)
    env = FabricParallelEnv(TRIAL, settings=settings)
    observations, _ = env.reset()
    assert observations[QUEUE].shape == (2 * len(PORT_FEATURES),)
    _, rewards, _, _, infos = env.step(dict.fromkeys(env.agents, 0))
    assert rewards == {name: -info["qlen_mean_bytes"] for name, info in infos.items()}
    env.close()


def test_actions_that_do_not_fit_are_refused():
    env = FabricParallelEnv(TRIAL)
    env.reset()
    with pytest.raises(InputError, match="has no action"):
        env.step({})
    with pytest.raises(InputError, match="is no agent"):
        env.step({**dict.fromkeys(env.agents, 0), "tor9:eth1": 0})
    with pytest.raises(InputError, match=r"actions are 0 to 119, not 0\.\.120"):
        env.step({**dict.fromkeys(env.agents, 0), QUEUE: 120})
    env.close()


def test_what_cannot_be_an_environment_is_refused():
    with pytest.raises(InputError, match="no queue 'switch9:eth0'"):
        FabricEnv(TRIAL, queue="switch9:eth0")
    with pytest.raises(InputError, match="no room for two decisions"):
        FabricEnv(dataclasses.replace(TRIAL, duration_ns=100_000))
    with pytest.raises(InputError, match="call reset first"):
        FabricEnv(TRIAL, queue=QUEUE).step(0)
    tiny = dataclasses.replace(TRIAL, traffic=(IncastSpec(2, 1_000, MS, 0, MS),))
    with pytest.raises(TrialError, match="ended before the first decision"):
        FabricEnv(tiny).reset()
    assert not running()


def test_a_failed_trial_is_raised_and_leaves_nothing():
    env = FabricEnv(dataclasses.replace(TRIAL, host=HostSpec("bbr")))
    with pytest.raises(TrialError, match="bbr"):
        env.reset()
    assert not running()


@pytest.mark.slow
def test_nothing_runs_after_close_or_reset_or_when_it_is_dropped():
    env = FabricEnv(TRIAL, queue=QUEUE)
    assert not running()
    env.reset()
    env.reset()
    env.step(0)
    assert len(running()) == 1
    env.close()
    env.close()
    assert not running()
    env.reset()
    del env
    gc.collect()
    assert not running()


@pytest.mark.slow
def test_ctrl_c_ends_it(tmp_path):
    code = (
        "import signal\n"
        "from orchestration.environment import FabricEnv\n"
        # a shell that runs the tests in the background has SIGINT ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "env = FabricEnv('examples/learning.yml', queue='switch1:eth0')\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    env.reset()\n"
        "    for _ in range(20):\n"
        "        env.step(0)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_example_trains(capsys):
    example = runpy.run_path(str(ROOT / "examples" / "train_with_sb3.py"))
    before, after = example["main"](["--steps", "120", "--test-episodes", "1"])
    assert 0 < before < 1
    assert 0 < after < 1
    said = capsys.readouterr().out
    assert "steps" in said
    assert f"after training {after:.3f}" in said


def test_the_code_in_the_docs_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert blocks
    for block in blocks:
        exec(block, {"__name__": "docs"})
    assert not running()
