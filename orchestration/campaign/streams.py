"""Random streams: searching, training, selecting and evaluating each draw seeds from their own.

| stream | what draws from it |
| --- | --- |
| `search` | searches for static settings |
| `training` | the episodes that a learner learns from |
| `held-out` | the trials that decide when training stops, and which network is kept |
| `evaluation` | the trials of campaigns |

No two streams share a seed, so that no tuner is evaluated on traffic by which it was chosen. People
who have seen results may write the next training protocol accordingly. From version 2 on, each
version of the protocol (`orchestration/training/protocol.yml`) therefore has evaluation seeds of
its own, with results that nobody has seen.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal["evaluation", "held-out", "order", "search", "training"]

# The newest version of the protocol. Version 1 means everything before versions were counted.
PROTOCOL = 2


def evaluation_stream(protocol: int | None) -> str:
    """Return the name of the stream that campaigns draw from under a version of the protocol.

    Campaigns that name no version keep the stream of version 1, and thereby their trials.
    """
    return "evaluation" if protocol is None or protocol == 1 else f"evaluation {protocol}"


def entropy(seed: int, stream: str, number: int) -> np.random.SeedSequence:
    """Return the seed sequence of draw `number` of a stream, under a campaign's or training's seed.

    It serves as the seed of NumPy's generators.
    """
    word = int.from_bytes(stream.encode(), "big")
    return np.random.SeedSequence(seed, spawn_key=(word, number))


def stream_seed(seed: int, stream: str, number: int) -> int:
    """Return seed `number` of a stream: 53 bits, which every JSON reader keeps exactly."""
    state = entropy(seed, stream, number).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(11))


def check_protocol(version: int | None) -> int | None:
    """Return `version` if there is such a protocol, and None for None; else raise ValueError."""
    if version is not None and not 1 <= version <= PROTOCOL:
        raise ValueError(f"no protocol {version}: use 1 to {PROTOCOL}")
    return version
