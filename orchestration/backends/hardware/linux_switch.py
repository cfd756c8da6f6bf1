"""Switches that run Linux: queues are RED, in the kernel or in the ASIC, or a program marks."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collectors.bpf.compile import RED_LAW, compiled
from collectors.readers.tc import RED_SIGNALS, CounterUnwrapper
from inventory.rack import Rack, SwitchSystem
from orchestration.agent.linux import qdiscs
from orchestration.backends.hardware.switches import Request, Switch, SwitchReading
from orchestration.core.marking_probability import line_max_ps, line_pmax, read_back_pmax, red_max_p
from orchestration.core.records import Floats

_ROW = 8


class LinuxSwitch(Switch):
    """A switch with Linux' RED queues: every number is exact and current when it is read.

    The queues are in the kernel, or in the ASIC where the switch's driver has offloaded them.
    """

    services: Sequence[str] = ("redq",)
    reads_back = True
    _operation_prefix = "red"

    def __init__(self, rack: Rack, device: str) -> None:
        queues = [queue for queue in rack.testbed.queues if queue.device == device]
        ports = [rack.interface(rack.testbed.ports[queue.index]) for queue in queues]
        handles = [qdiscs.leaf_handle(queue.klass) for queue in queues]
        super().__init__(device, list(zip(ports, handles, strict=True)))
        self._unwrapped = CounterUnwrapper()
        self._source = "Linux RED"

    def _reading(self, answer: Any) -> SwitchReading:
        rows = np.array(answer["rows"], dtype=np.int64).reshape(len(self._locations), _ROW)
        t_ns, took_ns = int(answer["t_ns"]), int(answer["took_ns"])
        if "in_asic" in answer:
            self._source = "RED in the ASIC" if answer["in_asic"] else "Linux RED"
        qlen, sent, packets, marked, dropped, kmin, kmax, max_p = rows.T
        return SwitchReading(
            t_ns=np.full(len(rows), t_ns, dtype=np.int64),
            qlen_bytes=qlen,
            tx_bytes=sent,
            tx_packets=self._unwrapped("packets", packets),
            marked_packets=self._unwrapped("marked", marked),
            dropped_packets=self._unwrapped("dropped", dropped),
            kmin_bytes=kmin,
            kmax_bytes=kmax,
            pmax=self._pmax(max_p.astype(np.float64)),
            took_ns=took_ns,
        )

    def _max_p(self, pmax: Floats) -> list[Any]:
        return [red_max_p(float(p)) for p in pmax]

    def _pmax(self, numbers: Floats) -> Floats:
        return read_back_pmax(numbers)

    def sources(self) -> Mapping[str, str]:
        """Return the source of each signal, which is the queue itself."""
        source = f"{self._source}, at the moment of reading"
        return dict.fromkeys((*RED_SIGNALS, "thresholds"), source)


class MarkedSwitch(LinuxSwitch):
    """A Linux switch whose kernel has no RED: a program marks on the instantaneous queue."""

    services = ("markq",)
    _operation_prefix = "marks"

    def open_request(self) -> Request:
        """Return the request that attaches the program. Raises NotReadyError without a compiler."""
        op, arguments = super().open_request()
        program = base64.b64encode(compiled(RED_LAW).read_bytes()).decode()
        return op, {**arguments, "program": program}

    def sources(self) -> Mapping[str, str]:
        """Return the source of each signal: the queue, or the program that marks."""
        marks = "a BPF program with RED's straight line, on the instantaneous queue"
        queue = "the plain queue in RED's place, at the moment of reading"
        sources = dict.fromkeys((*RED_SIGNALS, "thresholds"), queue)
        return {**sources, "marked_packets": marks, "thresholds": marks}

    def _max_p(self, pmax: Floats) -> list[Any]:
        shares: list[Any] = np.clip(line_max_ps(pmax), 1, 2**32 - 1).tolist()
        return shares

    def _pmax(self, numbers: Floats) -> Floats:
        return line_pmax(numbers)


def _switch(rack: Rack, device: str) -> Switch:
    lacks_red = "red" in rack.access[device].lacks
    return (MarkedSwitch if lacks_red else LinuxSwitch)(rack, device)


LINUX = SwitchSystem("Linux", _switch)
