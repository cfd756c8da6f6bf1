"""Streams of seeds: what is searched, learned, chosen and judged draws from one of its own.

| stream | what draws from it |
| --- | --- |
| `search` | searches for static settings |
| `training` | the episodes that a learner learns from |
| `held-out` | the trials that decide when to stop, and which network is kept |
| `evaluation` | the trials of campaigns, which judge |

No two streams share a seed, so no tuner is judged on what chose it. A result that was looked at may
influence the next protocol of training. So from the second on, each version of the protocol
(`orchestration/training/protocol.yml`) has evaluation seeds of its own, which nobody has seen.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal["evaluation", "held-out", "order", "search", "training"]

# The newest version of the protocol. Version 1 is all that was before versions were counted.
PROTOCOL = 2


def evaluation_stream(protocol: int | None) -> str:
    """Return the name of the stream that campaigns draw from under a version of the protocol.

    Campaigns that name no version keep the stream, and so the trials, that they always had.
    """
    return "evaluation" if protocol is None or protocol == 1 else f"evaluation {protocol}"


def entropy(seed: int, stream: str, number: int) -> np.random.SeedSequence:
    """Return what begins draw `number` of a stream, under a campaign's or training's seed."""
    word = int.from_bytes(stream.encode(), "big")
    return np.random.SeedSequence(seed, spawn_key=(word, number))


def stream_seed(seed: int, stream: str, number: int) -> int:
    """Return seed `number` of a stream: 53 bits, which JSON keeps exactly everywhere."""
    state = entropy(seed, stream, number).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(11))


def check_protocol(version: int | None) -> int | None:
    """Return a version of the protocol; raise ValueError for one that does not exist."""
    if version is not None and not 1 <= version <= PROTOCOL:
        raise ValueError(f"no protocol {version}: use 1 to {PROTOCOL}")
    return version
