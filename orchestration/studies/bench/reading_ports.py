"""Reading the ports of a switch in real time whose queues a program marks: how long one takes.

    python -m orchestration.studies.bench.reading_ports PORTS READINGS

makes the ports in this process's network namespace, and prints how long each reading took (ns).
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from collectors.bpf.compile import RED_LAW, compiled
from collectors.readers.mark_agent import MarkedQueues
from orchestration.backends.emulated.machine import missing_parts, said_apart
from orchestration.backends.emulated.system import run_batch, unshare_network
from orchestration.device import qdiscs
from orchestration.model.errors import NotReadyError
from orchestration.studies.bench.outcome import Figure, Outcome, at_most

# Ports, and the most that one reading of all of them may take, in us.
_WANTED_US = {64: 200.0, 1000: 3000.0}
_READINGS, _FIRST = 500, 20
_LIMIT_BYTES = 1_000_000


def reading_ports() -> Outcome:
    """Reading 64 and 1,000 ports that a program marks, in real time. Root."""
    missing_parts("a switch")
    compiled(RED_LAW)
    figures, data = [], {}
    for ports, wanted_us in _WANTED_US.items():
        try:
            took_ns = said_apart(
                ("--net",), "orchestration.studies.bench.reading_ports", str(ports), str(_READINGS)
            )
        except RuntimeError as error:
            raise NotReadyError(
                f"{ports} ports that a program marks cannot be read here: {error}",
                "see closloop doctor",
            ) from error
        took_us = np.array(took_ns) / 1e3
        what = f"one reading of {ports:,} ports"
        figures += [
            at_most(f"{what}: median", float(np.median(took_us)), wanted_us, 0, " us"),
            Figure(f"{what}: 90th percentile", f"{np.quantile(took_us, 0.9):.0f} us"),
        ]
        data[str(ports)] = took_ns
    return Outcome(
        "Reading the ports of a switch in real time whose queues a program marks",
        tuple(figures),
        (
            f"{_READINGS} readings of backlog, bytes, packets, drops, marks and thresholds, as a "
            "device's agent takes them; idle veths with tbf and bfifo, whose other ends are in "
            "another namespace",
        ),
        {"took_ns": data},
    )


def _made(ports: int, outside: int) -> Iterator[str]:
    for number in range(ports):
        yield f"link add name p{number} type veth peer name q{number} netns {outside}"
        yield f"link set p{number} up"


def _shaped(ports: int) -> Iterator[str]:
    limit = f"limit {_LIMIT_BYTES}"
    handle, leaf = qdiscs.TBF_HANDLE >> 16, qdiscs.leaf_handle(0) >> 16
    for number in range(ports):
        yield f"qdisc add dev p{number} root handle {handle:x}: tbf rate 1gbit burst 20k {limit}"
        yield f"qdisc add dev p{number} parent {handle:x}:1 handle {leaf:x}: bfifo {limit}"


def _outside() -> int:
    """Start a process in a network namespace of its own, and return its id."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        unshare_network()
        os.write(tell, b"1")
        signal.pause()
    os.read(ready, 1)
    return pid


def _readings(ports: int, readings: int) -> list[int]:
    outside = _outside()
    try:
        run_batch("ip", _made(ports, outside))
        run_batch("tc", _shaped(ports))
        program = base64.b64encode(compiled(RED_LAW).read_bytes()).decode()
        queues = MarkedQueues()
        request: dict[str, Any] = {
            "queues": [(f"p{number}", qdiscs.leaf_handle(0)) for number in range(ports)],
            "program": program,
        }
        queues.open(request)
        took_ns = []
        for _ in range(_FIRST + readings):
            began_ns = time.perf_counter_ns()
            queues.read({})
            took_ns.append(time.perf_counter_ns() - began_ns)
        queues.close()
    finally:
        os.kill(outside, signal.SIGKILL)
    return took_ns[_FIRST:]


if __name__ == "__main__":
    print(json.dumps(_readings(*map(int, sys.argv[1:]))))
