"""The virtual rack's SONiC-like switch: it connects Redis with the queues of the Linux kernel.

    python -m orchestration.virtual_rack.sonic_switch --device leaf1 --config layout.json

This program stands in for SONiC's daemons orchagent and syncd, and for the ASIC. It fills an empty
database as a booting switch does, from what `config save` wrote; it applies changes of CONFIG_DB,
and writes ASIC_DB and COUNTERS_DB. It waits for Redis, and begins anew from the database after a
restart of Redis. When it is ready it writes `PORT_TABLE:PortInitDone` to APPL_DB, as a switch does.
Where orchagent would crash, the whole program ends by SIGSEGV, because SONiC stops syncd with
orchagent.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestration.agent.linux import qdiscs
from orchestration.agent.linux.netlink import RouteSocket
from orchestration.agent.sonic.resp import (
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
)
from orchestration.core.marking_probability import red_max_p
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.reboot import CONFIG_FILE, load_config, save_config
from orchestration.virtual_rack.sonic_counters import FlexCounters
from orchestration.virtual_rack.sonic_model import (
    ForwardingPlane,
    PortCounts,
    QueueCounts,
    RedSettings,
    SwitchModel,
    capability_rows,
    config_rows,
    counter_maps,
    port_state_rows,
    switch_model,
    version_file,
)
from orchestration.virtual_rack.sonic_orchagent import Orchagent, OrchagentCrash, PfcWatchdog
from orchestration.virtual_rack.sonic_telemetry import TABLES as TELEMETRY_TABLES
from orchestration.virtual_rack.sonic_telemetry import Sender, Telemetry, constants_file

VERSION_FILE = Path("/etc/sonic/sonic_version.yml")
CONSTANTS_FILE = Path("/etc/sonic/constants.yml")
READY = "PORT_TABLE:PortInitDone"
# In this order, because a table's rows refer to those of earlier tables.
_TABLES = (
    *("WRED_PROFILE", "QUEUE", "PORT_QOS_MAP", "PFC_WD", "FLEX_COUNTER_TABLE"),
    *TELEMETRY_TABLES,
)
_RETRY_S = 0.05
_NET_DEV = Path("/proc/net/dev")
_MARKED = 12  # offset of `marked` in struct tc_red_xstats: early, pdrop, other, marked
_OWN = (ASIC_DB, COUNTERS_DB, STATE_DB, APPL_DB)


class KernelPlane:
    """The forwarding plane: the kernel's RED queues in this network namespace."""

    def __init__(self, model: SwitchModel) -> None:
        self._route = RouteSocket()
        self._index = {port.name: socket.if_nametoindex(port.name) for port in model.ports}
        self._leaves = {
            (port.name, number): leaf
            for port in model.ports
            for number, leaf in port.queues.items()
        }
        self._totals: dict[tuple[str, int, str], int] = {}

    def set_red(self, port: str, queue: int, settings: RedSettings | None) -> None:
        """Change RED of a queue and keep its packets. Queues that carry no packets have no RED."""
        leaf = self._leaves.get((port, queue))
        if leaf is None:
            return
        never = leaf.buffer_bytes
        low, high, max_p = never, never, qdiscs.ALWAYS
        if settings is not None:
            low, high = settings.kmin_bytes, settings.kmax_bytes
            max_p = red_max_p(settings.percent / 100)
        index = self._index[port]
        request = qdiscs.red_change(index, leaf.handle, leaf.parent, low, high, max_p)
        self._route.request([request])

    def queues(self) -> dict[tuple[str, int], QueueCounts]:
        """Read all queues, with one request to the kernel."""
        by_handle = {
            (q.ifindex, q.handle): q for q in qdiscs.qdiscs(self._route) if q.kind == "red"
        }
        result = {}
        for (port, queue), leaf in self._leaves.items():
            item = by_handle[self._index[port], leaf.handle]
            marked = int.from_bytes(item.xstats[_MARKED : _MARKED + 4], "little")
            result[port, queue] = QueueCounts(
                depth_bytes=item.backlog,
                tx_bytes=item.bytes_,
                tx_packets=self._extended(port, queue, "packets", item.packets),
                marked_packets=self._extended(port, queue, "marked", marked),
                dropped_packets=self._extended(port, queue, "drops", item.drops),
            )
        return result

    def _extended(self, port: str, queue: int, name: str, value: int) -> int:
        """Extend a 32-bit counter of the kernel to 64 bits, as an ASIC's counters have."""
        last = self._totals.get((port, queue, name), 0)
        total = last + ((value - last) & 0xFFFFFFFF)
        self._totals[port, queue, name] = total
        return total

    def ports(self) -> dict[str, PortCounts]:
        """Read the ports' counters from /proc/net/dev."""
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


class VirtualSonicSwitch:
    """A switch's daemons and ASIC, with one Redis and one forwarding plane."""

    def __init__(
        self,
        model: SwitchModel,
        plane: ForwardingPlane,
        path: str = SOCKET,
        log: Callable[[str], None] = _print,
        config_file: Path = CONFIG_FILE,
    ) -> None:
        self.model, self.plane, self._path, self.log = model, plane, path, log
        self._config_file = config_file
        self._pending: list[Command] = []
        self._redis = Redis(path, restart_timeout_s=0.0)
        self.sender = Sender()
        self.daemons = _Daemons(self)

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Serve until `stop` returns True, which is called after each event and poll.

        Raises OrchagentCrash where orchagent would crash.
        """
        try:
            while not stop():
                try:
                    self._serve(stop)
                except RedisGone as error:
                    self.log(f"waiting for Redis: {error.what}")
                    time.sleep(_RETRY_S)
                except RedisError as error:
                    self.log(f"starting again: {error.what}")
                    time.sleep(_RETRY_S)
        finally:
            self.sender.close()
            self._redis.close()

    def _serve(self, stop: Callable[[], bool]) -> None:
        self._redis.close()
        events = Events(self._path, CONFIG_DB)
        try:
            self._fill_databases()
            daemons = self.daemons = _Daemons(self)
            daemons.orchagent.start()
            self._apply_changes([(key, "hset") for key in self._keys()], daemons)
            self._pending.append((APPL_DB, ("HSET", READY, "lanes", "0")))
            self._flush()
            poll = select.poll()
            poll.register(events.fileno(), select.POLLIN)
            while not stop():
                if poll.poll(self._poll_timeout_ms(daemons)):
                    self._apply_changes(events.take(), daemons)
                daemons.poll()
                self._flush()
        finally:
            events.close()

    @staticmethod
    def _poll_timeout_ms(daemons: _Daemons) -> int | None:
        at = daemons.next_ns()
        # rounded up, because nothing would be due yet at a poll that is too early
        return None if at is None else max(0, -(-(at - time.monotonic_ns()) // 1_000_000))

    def _fill_databases(self) -> None:
        """Write the daemons' rows anew, and the configuration if the database is empty."""
        if not self._redis.call(CONFIG_DB, "EXISTS", "DEVICE_METADATA|localhost"):
            rows = load_config(self._config_file)
            if rows is None:
                rows = config_rows(self.model)
                save_config(rows, self._config_file)
            self._queue_rows(CONFIG_DB, rows)
        for db in _OWN:
            self._pending.append((db, ("FLUSHDB",)))
        self._queue_rows(STATE_DB, capability_rows(self.model))
        self._queue_rows(STATE_DB, port_state_rows(self.model))
        self._queue_rows(COUNTERS_DB, counter_maps(self.model))
        self._flush()

    def _queue_rows(self, db: int, rows: Mapping[str, Mapping[str, str]]) -> None:
        for key, row in rows.items():
            self._pending.append((db, ("HSET", key, *_words(row))))

    def _keys(self) -> list[str]:
        patterns = [(CONFIG_DB, ("KEYS", f"{table}|*")) for table in _TABLES]
        return [key for keys in self._redis.run(patterns) for key in keys]

    def _apply_changes(self, changes: list[tuple[str, str]], daemons: _Daemons) -> None:
        """Apply changed rows, as swss-common's tables do.

        A row is read when its change is applied, so that of several writes only the last is seen.
        For a row that was removed and written again, the removal is applied first. A table's rows
        are applied in the order of their keys.
        """
        removed: dict[str, bool] = {}
        known = [item for item in changes if item[0].partition("|")[0] in _TABLES]
        for key, change in sorted(known, key=lambda item: _row_order(item[0])):
            removed[key] = removed.get(key, False) or change == "del"
        rows = self._redis.hashes(CONFIG_DB, removed)
        now_ns = time.monotonic_ns()
        for key, gone in removed.items():
            if gone:
                daemons.apply_row(key, None, now_ns)
            if rows[key]:
                daemons.apply_row(key, rows[key], now_ns)

    def write_asic(self, key: str, field: str | None, value: str) -> None:
        """Set a field in ASIC_DB; None as the field removes the object."""
        words = ("DEL", key) if field is None else ("HSET", key, field, value)
        self._pending.append((ASIC_DB, words))

    def write_counters(self, key: str, fields: Mapping[str, str | None]) -> None:
        """Set fields in COUNTERS_DB; a value of None removes a field."""
        removed_names = [name for name, value in fields.items() if value is None]
        values = {name: value for name, value in fields.items() if value is not None}
        if values:
            self._pending.append((COUNTERS_DB, ("HSET", key, *_words(values))))
        if removed_names:
            self._pending.append((COUNTERS_DB, ("HDEL", key, *removed_names)))

    def write_state(self, key: str, row: Mapping[str, str | bytes] | None) -> None:
        """Set a row of STATE_DB; a row of None removes it."""
        words = ("DEL", key) if row is None else ("HSET", key, *_words(row))
        self._pending.append((STATE_DB, words))

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        self._redis.run(pending)


class _Daemons:
    """The daemons orchagent and syncd, from one start to the next."""

    def __init__(self, switch: VirtualSonicSwitch) -> None:
        model, plane, log = switch.model, switch.plane, switch.log
        self.orchagent = Orchagent(model, switch.write_asic, plane.set_red, log)
        self.watchdog = PfcWatchdog(model, switch.write_counters, self._poll_watchdog, log)
        self.counters = FlexCounters(
            model, plane, switch.write_counters, lambda: self.watchdog.actions
        )
        self.telemetry = Telemetry(model, plane, switch.write_state, switch.sender.send, log)

    def _poll_watchdog(self, text: str) -> None:
        self.counters.set_interval("PFCWD", text)

    def apply_row(self, key: str, row: Mapping[str, str] | None, now_ns: int) -> None:
        """Apply the present content of a row of CONFIG_DB, None if it has been removed."""
        self.orchagent.apply_row(key, row)
        self.watchdog.apply_row(key, row)
        self.counters.apply_row(key, row, now_ns)
        self.telemetry.apply_row(key, row, now_ns)

    def poll(self) -> None:
        """Read and write the counters that are due, and send the telemetry that is due."""
        self.counters.poll(time.monotonic_ns())
        self.telemetry.poll(time.monotonic_ns(), time.time_ns())

    def next_ns(self) -> int | None:
        """Return the time of the next poll (CLOCK_MONOTONIC), or None if there is none."""
        times = (self.counters.next_ns(), self.telemetry.next_ns())
        return min((at for at in times if at is not None), default=None)


def _row_order(key: str) -> tuple[int, str]:
    table, _, name = key.partition("|")
    return _TABLES.index(table), name


def _words(row: Mapping[str, str | bytes]) -> list[str | bytes]:
    return [part for pair in row.items() for part in pair]


def main() -> None:
    """Run the program for one switch of a virtual rack."""
    parser = argparse.ArgumentParser(prog="sonic_switch")
    parser.add_argument("--device", required=True)
    parser.add_argument("--config", required=True, type=Path, help="the rack's layout, as JSON")
    parser.add_argument("--socket", default=SOCKET)
    arguments = parser.parse_args()
    layout = Layout.from_json(json.loads(arguments.config.read_text()))
    model = switch_model(layout, arguments.device)
    VERSION_FILE.parent.mkdir(parents=True, exist_ok=True)
    VERSION_FILE.write_text(version_file(model))
    if model.streams:
        CONSTANTS_FILE.write_text(constants_file())
    # the CPU load of syncd is measured by its name
    Path("/proc/self/comm").write_text("syncd")
    try:
        VirtualSonicSwitch(model, KernelPlane(model), arguments.socket).run()
    except OrchagentCrash as crash:
        _print(str(crash))
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    main()
