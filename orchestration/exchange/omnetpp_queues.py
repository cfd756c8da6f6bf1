"""Samples queues that an OMNeT++ result file records at every change."""

from __future__ import annotations

import re

import numpy as np

from inventory.strictyaml import Document, suggest
from inventory.topology import Testbed
from orchestration.exchange.mapping import SIZE_UNITS, OmnetppQueues
from orchestration.exchange.omnetpp_file import Run, Vector
from orchestration.model.errors import InputError
from orchestration.model.records import MISSING, Ints, Samples
from orchestration.model.signals import names


def queue_samples(
    run: Run,
    queues: OmnetppQueues,
    testbed: Testbed,
    base_ns: int,
    last_ns: int,
    document: Document,
) -> Samples:
    """Return samples of the queues at every period: what was last recorded before each.

    Raises InputError, with the mapping's line, for a queue that the testbed has not.
    """
    pattern = _pattern(queues.module, document)
    labels = {queue.label: number for number, queue in enumerate(testbed.queues)}
    t_ns = np.arange(1, last_ns // queues.sample_period + 1, dtype=np.int64) * queues.sample_period
    shape = (len(t_ns), len(testbed.queues))
    samples = {
        name: np.full(shape, MISSING, dtype=np.int64) for name in ("length", "marked", "dropped")
    }
    wanted = {called: name for name in samples if (called := getattr(queues, name)) is not None}
    seen = 0
    for vector in run.vectors:
        match = pattern.fullmatch(vector.module)
        if match is None or vector.name not in wanted:
            continue
        own = f"{match['device']}:{match['port']}"
        label = queues.ports.get(own, own)
        if label not in labels:
            what = f"the queue {own} of module {vector.module} is no port of {testbed.name}"
            remedy = (
                f"{suggest(label, labels)}name it under `ports:` like {own}: {next(iter(labels))}"
            )
            raise InputError([document.problem(("queues",), what, remedy)])
        name = wanted[vector.name]
        factor = SIZE_UNITS[queues.size_unit] if name == "length" else 1
        samples[name][:, labels[label]] = _held(vector, t_ns + base_ns, factor)
        seen += 1
    if not seen:
        what = "no vector is a queue as `queues` says"
        remedy = "`closloop import omnetpp FILE --list` shows what there is"
        raise InputError([document.problem(("queues",), what, remedy)])
    unknown = np.full(shape, MISSING, dtype=np.int64)
    found = {
        "qlen_bytes": samples["length"],
        "marked_packets": samples["marked"],
        "dropped_packets": samples["dropped"],
    }
    return Samples(t_ns, {name: found.get(name, unknown) for name in names("queue")})


def _held(vector: Vector, t_ns: Ints, factor: int) -> Ints:
    """Return the value that held at each time, `MISSING` before the first."""
    place = np.searchsorted(vector.t_ns, t_ns, side="right") - 1
    if not len(vector.value):
        return np.full(len(t_ns), MISSING, dtype=np.int64)
    scaled = np.rint(vector.value * factor).astype(np.int64)
    return np.where(place >= 0, scaled[np.maximum(place, 0)], MISSING)


def _pattern(text: str, document: Document) -> re.Pattern[str]:
    """Return the modules' pattern. Raises InputError unless it has the groups device and port."""
    remedy = r"write it like 'Net\.(?P<device>\w+)\.(?P<port>eth\[\d+\])\.queue'"
    try:
        pattern = re.compile(text)
    except re.error as error:
        what = f"is no regular expression: {error}"
        raise InputError([document.problem(("queues", "module"), what, remedy)]) from error
    if not {"device", "port"} <= set(pattern.groupindex):
        what = "has not the groups `device` and `port`"
        raise InputError([document.problem(("queues", "module"), what, remedy)])
    return pattern
