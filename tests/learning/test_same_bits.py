"""Decisions have the same bits on every x86-64 machine: variables stand in for other CPUs."""

import os
import subprocess
import sys

import numpy as np
import pytest

from orchestration.bench.repeatable import OTHER_CPUS
from tuners.learning import networks as exact
from tuners.learning.networks import Weight, matmul, mlp, mlp_by_group, prepared_parameters

DECIDE = """
import hashlib

import numpy as np

from inventory.files import load_testbed
from orchestration.core.records import Observation
from orchestration.core.trial import TunerSpec
from tuners import registry
from tuners.learning.networks import mlp

testbed = load_testbed("graphcc")
count = len(testbed.queues)
rate = np.array([queue.rate_bps for queue in testbed.queues])
zeros = np.zeros(count, dtype=np.int64)


def readings(rng):
    sent = zeros
    for number in range(1, 31):
        sent = sent + (rate * rng.random(count) * 100e-6 / 8).astype(np.int64)
        length = rng.integers(0, 2 ** rng.integers(1, 21, count))
        values = {
            "qlen_bytes": length, "tx_bytes": sent, "marked_packets": sent // 9_000,
            "qlen_mean_bytes": length * 0.7, "incast_degree": rng.integers(0, 40, count),
            "mice_flows": rng.integers(0, 9, count), "elephant_flows": rng.integers(0, 5, count),
        }
        ecn = {
            "kmin_bytes": rng.integers(1, 100_000, count),
            "kmax_bytes": rng.integers(100_000, 400_000, count),
            "pmax": rng.random(count),
        }
        yield Observation(100_000 * number, zeros, values, {"ecn": ecn})


for name in ("acc", "pet", "graphcc"):
    for params in ({}, {"collect": True, "explore": 0.2}):
        tuner = registry.create(TunerSpec(name, params))
        tuner.reset(testbed, 1)
        mark = hashlib.sha256()
        decided = 0
        for observation in readings(np.random.default_rng(5)):
            for change in tuner.act(observation):
                decided += len(change.targets)
                for array in (change.targets, *change.values.values()):
                    mark.update(array.tobytes())
        # states, log probabilities and rewards: what learning starts from
        for key, array in sorted(tuner.trace().items()):
            mark.update(array.tobytes())
        print(name, sorted(params), decided, mark.hexdigest())
"""
LEARN = """
import hashlib

import numpy as np

from inventory.files import load_testbed
from orchestration.training.request import make_learner

testbed = load_testbed("rlcc-7")
count = len(testbed.queues)
for name, features in (("acc", 19), ("graphcc", 10), ("pet", 25)):
    rng = np.random.default_rng(1)
    trace = {
        "x": rng.random((20, count, features)).astype(np.float32),
        "reward": rng.random((20, count)),
        "action": rng.integers(0, 100, (20, count)),
        "heads": rng.integers(0, 10, (20, count, 3)),
        "log_probability": rng.random((20, count)) - 6.0,
        "drawn": rng.random((20, count)) < 0.5,
    }
    learner = make_learner(name, 1, testbed, {})
    learner.learn(trace)
    arrays = learner.parameters()
    whole = b"".join(arrays[key].tobytes() for key in sorted(arrays))
    print(name, hashlib.sha256(whole).hexdigest())
"""


def output(program: str, variables) -> str:
    drop = {name for other in OTHER_CPUS.values() for name in other} | {"ATEN_CPU_CAPABILITY"}
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **variables, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def blas(variables) -> str:
    """What a plain product and a plain exponential come to: these do depend on the CPU."""
    return output(
        "import numpy as np\n"
        "rng = np.random.default_rng(0)\n"
        "x, w = rng.random((40, 64), dtype='f'), rng.random((64, 225), dtype='f')\n"
        "print((x @ w).tobytes().hex(), np.exp(x).tobytes().hex())\n",
        variables,
    )


def test_the_stand_ins_are_other_cpus():
    # Otherwise the tests below would hold whatever the code did.
    assert len({blas(variables) for variables in OTHER_CPUS.values()}) > 1


@pytest.mark.slow
def test_decisions_are_the_same_on_other_cpus():
    here = output(DECIDE, {})
    assert [int(line.split()[-2]) > 50 for line in here.splitlines()] == [True] * 6
    for cpu, variables in OTHER_CPUS.items():
        assert output(DECIDE, variables) == here, cpu


@pytest.mark.slow
def test_learning_is_the_same_on_other_cpus_with_avx2():
    newer = {cpu: variables for cpu, variables in OTHER_CPUS.items() if "SSE3" not in cpu}
    here = output(LEARN, {})
    assert len(here.splitlines()) == 3
    for cpu, variables in newer.items():
        assert output(LEARN, variables) == here, cpu


def test_a_product_is_exact_in_any_order():
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, (7, 5, 64)).astype(np.float32)
    weight = rng.normal(0, 1, (64, 30)).astype(np.float32)
    got = matmul(x, weight)
    turned = rng.permutation(64)
    np.testing.assert_array_equal(matmul(x[..., turned], weight[turned]), got)
    np.testing.assert_array_equal(matmul(x, Weight.of(weight)), got)
    # each row on its own, too
    np.testing.assert_array_equal(matmul(x[3, 2:3], weight)[0], got[3, 2])
    exactly = x.astype(np.float64) @ weight.astype(np.float64)
    # of the order of what float32 is off by
    assert np.abs(got - exactly).max() < np.abs(x).max() * np.abs(weight).max() * 64 * 2.0**-23
    assert not matmul(np.zeros((2, 64), dtype=np.float32), weight).any()


def test_sums_never_exceed_what_a_double_holds():
    # the worst there can be: every product as large as it gets, of one sign
    for inputs in (1, 18, 64, 72, 1000):
        x, weight = np.full((1, inputs), 1.9999999), np.full((inputs, 1), -1.9999999)
        got = matmul(x, weight)[0, 0]
        whole = Weight.of(weight).whole
        assert np.abs(whole).max() <= 2**23
        assert got == pytest.approx(-4 * inputs, rel=1e-6)


def test_a_group_of_rows_is_decided_by_its_own_copy():
    rng = np.random.default_rng(0)
    net = {
        "q.0.weight": rng.normal(size=(3, 4, 8)).astype(np.float32),
        "q.0.bias": rng.normal(size=(3, 1, 8)).astype(np.float32),
        "q.1.weight": rng.normal(size=(3, 8, 2)).astype(np.float32),
        "q.1.bias": rng.normal(size=(3, 1, 2)).astype(np.float32),
    }
    x, group = rng.random((6, 4)).astype(np.float32), np.array([2, 0, 2, 1, 0, 2])
    got = mlp_by_group(prepared_parameters(net), "q", x, group)
    for row, copy in enumerate(group):
        one = {name: values[copy] for name, values in net.items()}
        np.testing.assert_allclose(got[row], mlp(one, "q", x[row : row + 1])[0], rtol=1e-5)


def test_exp_and_log_are_right():
    x = np.linspace(-700, 700, 100_001)
    np.testing.assert_allclose(exact.exp(x), np.exp(x), rtol=1e-15)
    y = np.exp(np.linspace(-300, 300, 100_001))
    np.testing.assert_allclose(exact.log(y), np.log(y), rtol=1e-15)
    np.testing.assert_allclose(exact.log2(y), np.log2(y), rtol=1e-15)
    np.testing.assert_array_equal(exact.log2(2.0 ** np.arange(-50, 50)), np.arange(-50, 50))


def test_ceil_log2_is_exact():
    edges = 2.0 ** np.arange(-20, 21)
    np.testing.assert_array_equal(exact.ceil_log2(edges), np.arange(-20, 21))
    np.testing.assert_array_equal(exact.ceil_log2(np.nextafter(edges, 9e9)), np.arange(-19, 22))
