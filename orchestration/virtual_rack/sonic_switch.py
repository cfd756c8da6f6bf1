"""The bridge of the virtual rack's SONiC-like switch: Redis on one side, the kernel on the other.

    python -m orchestration.virtual_rack.sonic_switch --device leaf1 --config layout.json

It stands in for orchagent, syncd and the ASIC. It fills an empty database as a booting switch does,
applies changes of CONFIG_DB, and publishes ASIC_DB and COUNTERS_DB. It waits for Redis, and starts
anew from the database after a restart of Redis. When it is ready it writes
`PORT_TABLE:PortInitDone` to APPL_DB, as a switch does.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestration.device import qdiscs
from orchestration.device.agent.resp import (
    APPL_DB,
    ASIC_DB,
    CONFIG_DB,
    COUNTERS_DB,
    SOCKET,
    STATE_DB,
    Command,
    Events,
    Redis,
    RedisError,
    RedisGone,
    pairs,
)
from orchestration.device.netlink import RouteSocket
from orchestration.model.red_law import red_max_p
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.sonic_counters import FlexCounters
from orchestration.virtual_rack.sonic_model import (
    Marking,
    Plane,
    PortCounts,
    QueueCounts,
    SwitchModel,
    capability_rows,
    config_rows,
    counter_maps,
    model_of,
    port_state_rows,
    version_file,
)
from orchestration.virtual_rack.sonic_orchagent import Orchagent
from orchestration.virtual_rack.sonic_telemetry import TABLES as TELEMETRY_TABLES
from orchestration.virtual_rack.sonic_telemetry import Sender, Telemetry, constants

VERSION_FILE = Path("/etc/sonic/sonic_version.yml")
CONSTANTS_FILE = Path("/etc/sonic/constants.yml")
READY = "PORT_TABLE:PortInitDone"
# A table comes after those that it refers to.
_TABLES = (
    *("WRED_PROFILE", "QUEUE", "PORT_QOS_MAP", "PFC_WD", "FLEX_COUNTER_TABLE"),
    *TELEMETRY_TABLES,
)
_RETRY_S = 0.05
_NET_DEV = Path("/proc/net/dev")
_MARKED = 12  # struct tc_red_xstats: early, pdrop, other, marked
_OWN = (ASIC_DB, COUNTERS_DB, STATE_DB, APPL_DB)


class KernelPlane:
    """The kernel's RED queues of this network namespace."""

    def __init__(self, model: SwitchModel) -> None:
        self._route = RouteSocket()
        self._index = {port.name: socket.if_nametoindex(port.name) for port in model.ports}
        self._leaves = {
            (port.name, number): leaf
            for port in model.ports
            for number, leaf in port.queues.items()
        }
        self._wide: dict[tuple[str, int, str], int] = {}

    def mark(self, port: str, queue: int, marking: Marking | None) -> None:
        """Change RED and keep queued packets. Queues that carry no packets have no RED."""
        leaf = self._leaves.get((port, queue))
        if leaf is None:
            return
        never = leaf.buffer_bytes
        low, high, max_p = never, never, qdiscs.ALWAYS
        if marking is not None:
            low, high = marking.kmin_bytes, marking.kmax_bytes
            max_p = red_max_p(marking.percent / 100)
        index = self._index[port]
        request = qdiscs.red_change(index, leaf.handle, leaf.parent, low, high, max_p)
        self._route.request([request])

    def queues(self) -> dict[tuple[str, int], QueueCounts]:
        """Read every queue with one dump."""
        found = {(q.ifindex, q.handle): q for q in qdiscs.qdiscs(self._route) if q.kind == "red"}
        result = {}
        for (port, queue), leaf in self._leaves.items():
            item = found[self._index[port], leaf.handle]
            marked = int.from_bytes(item.xstats[_MARKED : _MARKED + 4], "little")
            result[port, queue] = QueueCounts(
                depth_bytes=item.backlog,
                tx_bytes=item.bytes_,
                tx_packets=self._widened(port, queue, "packets", item.packets),
                marked_packets=self._widened(port, queue, "marked", marked),
                dropped_packets=self._widened(port, queue, "drops", item.drops),
            )
        return result

    def _widened(self, port: str, queue: int, name: str, value: int) -> int:
        """Extend a 32-bit counter of the kernel to 64 bits, as an ASIC counts."""
        last = self._wide.get((port, queue, name), 0)
        total = last + ((value - last) & 0xFFFFFFFF)
        self._wide[port, queue, name] = total
        return total

    def ports(self) -> dict[str, PortCounts]:
        """Read /proc/net/dev."""
        return read_ports(_NET_DEV.read_text(), self._index)


def read_ports(text: str, names: Mapping[str, int]) -> dict[str, PortCounts]:
    """Return the counters of some interfaces from the text of /proc/net/dev."""
    result = {}
    for line in text.splitlines()[2:]:
        name, _, values = line.partition(":")
        if name.strip() in names:
            n = [int(value) for value in values.split()]
            result[name.strip()] = PortCounts(n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11])
    return result


def _print(text: str) -> None:
    print(text, flush=True)


class Bridge:
    """The switch's daemons and ASIC over one Redis and one forwarding plane."""

    def __init__(
        self,
        model: SwitchModel,
        plane: Plane,
        path: str = SOCKET,
        log: Callable[[str], None] = _print,
    ) -> None:
        self._model, self._plane, self._path, self._log = model, plane, path, log
        self._pending: list[Command] = []
        self._redis = Redis(path, patience_s=0.0)
        self._sender = Sender()

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Serve until `stop` returns True; it is called at every event and poll."""
        while not stop():
            try:
                self._serve(stop)
            except RedisGone as error:
                self._log(f"waiting for Redis: {error.what}")
                time.sleep(_RETRY_S)
            except RedisError as error:
                self._log(f"starting again: {error.what}")
                time.sleep(_RETRY_S)

    def _serve(self, stop: Callable[[], bool]) -> None:
        self._redis.close()
        events = Events(self._path, CONFIG_DB)
        try:
            self._fill()
            orchagent = Orchagent(self._model, self._write_asic, self._plane.mark, self._log)
            counters = FlexCounters(self._model, self._plane, self._write_counters)
            self._telemetry = Telemetry(
                self._model, self._plane, self._write_state, self._sender.send, self._log
            )
            orchagent.start()
            keys = sorted(self._keys(), key=lambda key: _TABLES.index(key.partition("|")[0]))
            self._take(keys, orchagent, counters)
            self._pending.append((APPL_DB, ("HSET", READY, "lanes", "0")))
            self._flush()
            poll = select.poll()
            poll.register(events.fileno(), select.POLLIN)
            while not stop():
                if poll.poll(self._patience_ms(counters)):
                    self._take(events.take(), orchagent, counters)
                counters.poll(time.monotonic_ns())
                self._telemetry.poll(time.monotonic_ns(), time.time_ns())
                self._flush()
        finally:
            events.close()

    def _patience_ms(self, counters: FlexCounters) -> int | None:
        times = [counters.next_ns(), self._telemetry.next_ns()]
        at = min((time for time in times if time is not None), default=None)
        # rounded up, because nothing is due at an earlier poll
        return None if at is None else max(0, -(-(at - time.monotonic_ns()) // 1_000_000))

    def _fill(self) -> None:
        """Fill the database: rewrite the daemons' rows, and add the configuration if missing."""
        if not self._redis.call(CONFIG_DB, "EXISTS", "DEVICE_METADATA|localhost"):
            self._put(CONFIG_DB, config_rows(self._model))
        for db in _OWN:
            self._pending.append((db, ("FLUSHDB",)))
        self._put(STATE_DB, capability_rows(self._model))
        self._put(STATE_DB, port_state_rows(self._model))
        self._put(COUNTERS_DB, counter_maps(self._model))
        self._flush()

    def _put(self, db: int, rows: Mapping[str, Mapping[str, str]]) -> None:
        for key, row in rows.items():
            self._pending.append((db, ("HSET", key, *_flat(row))))

    def _keys(self) -> list[str]:
        patterns = [(CONFIG_DB, ("KEYS", f"{table}|*")) for table in _TABLES]
        return [key for keys in self._redis.run(patterns) for key in sorted(keys)]

    def _take(self, keys: list[str], orchagent: Orchagent, counters: FlexCounters) -> None:
        """Read the present rows and pass them on."""
        replies = self._redis.run([(CONFIG_DB, ("HGETALL", key)) for key in keys])
        now_ns = time.monotonic_ns()
        for key, flat in zip(keys, replies, strict=True):
            row = pairs(flat) if flat else None
            orchagent.take(key, row)
            counters.take(key, row, now_ns)
            self._telemetry.take(key, row, now_ns)

    def _write_asic(self, key: str, field: str | None, value: str) -> None:
        words = ("DEL", key) if field is None else ("HSET", key, field, value)
        self._pending.append((ASIC_DB, words))

    def _write_counters(self, key: str, fields: Mapping[str, str]) -> None:
        self._pending.append((COUNTERS_DB, ("HSET", key, *_flat(fields))))

    def _write_state(self, key: str, row: Mapping[str, str | bytes] | None) -> None:
        words = ("DEL", key) if row is None else ("HSET", key, *_flat(row))
        self._pending.append((STATE_DB, words))

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        self._redis.run(pending)


def _flat(row: Mapping[str, str | bytes]) -> list[str | bytes]:
    return [part for pair in row.items() for part in pair]


def main() -> None:
    """Run the bridge of one switch of a virtual rack."""
    parser = argparse.ArgumentParser(prog="sonic_switch")
    parser.add_argument("--device", required=True)
    parser.add_argument("--config", required=True, type=Path, help="the rack's layout, as JSON")
    parser.add_argument("--socket", default=SOCKET)
    asked = parser.parse_args()
    layout = Layout.from_json(json.loads(asked.config.read_text()))
    model = model_of(layout, asked.device)
    VERSION_FILE.parent.mkdir(parents=True, exist_ok=True)
    VERSION_FILE.write_text(version_file(model))
    if model.streams:
        CONSTANTS_FILE.write_text(constants())
    Bridge(model, KernelPlane(model), asked.socket).run()


if __name__ == "__main__":
    main()
