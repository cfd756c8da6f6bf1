"""What changes hands between a guest and a tuner in the host's process."""

import dataclasses

import numpy as np
import pytest

from orchestration.backends.emulated import remote
from orchestration.model.records import NoAction, Observation, SetThresholds

COUNTS = [field.name for field in dataclasses.fields(Observation) if field.name != "t_ns"]


def observation(without: tuple[str, ...] = ()) -> Observation:
    rng = np.random.default_rng(1)
    values = {name: rng.integers(0, 2**40, 5) for name in COUNTS if name not in without}
    floats = {"pmax", "qlen_mean_bytes"} - set(without)
    return Observation(t_ns=2**40, **{**values, **{name: rng.random(5) for name in floats}})


@pytest.mark.parametrize(
    "without",
    [(), ("incast_degree", "mice_flows", "elephant_flows"), ("qlen_mean_bytes", "incast_degree")],
)
def test_an_observation_arrives_as_it_was(without):
    sent = observation(without)
    got = remote.unpack_observation(remote.pack_observation(sent))
    assert got.t_ns == sent.t_ns
    assert type(got.t_ns) is int
    for name in COUNTS:
        before, after = getattr(sent, name), getattr(got, name)
        if name in without:
            assert after is None
        else:
            np.testing.assert_array_equal(after, before)
            assert after.dtype == before.dtype
            after[0] = 0  # the tuner's own


@pytest.mark.parametrize("queues", [0, 3])
def test_an_action_arrives_as_it_was(queues):
    sent = SetThresholds(
        np.arange(queues, dtype=np.int32),
        np.full(queues, 5_000),
        np.full(queues, 200_000),
        np.full(queues, 1, dtype=np.int64),
    )
    got = remote.unpack_action(remote.pack_action(sent))
    assert isinstance(got, SetThresholds)
    for name in ("queues", "kmin_bytes", "kmax_bytes", "pmax"):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
    assert got.pmax.dtype == np.float64


def test_no_action_arrives_as_none():
    assert remote.unpack_action(remote.pack_action(NoAction())) == NoAction()
