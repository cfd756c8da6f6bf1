"""Read the input files of the HPCC ns-3 simulator: flows, topology, config.

From its sources: node ids count from 0. A port's index counts the node's links from 1, in the order
of the file. Start times of flows are seconds with nine decimals, and begin at 2 s. The config has
thresholds by rate in units of 1,000 B, and one buffer for each switch in MiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inventory.routing import PathTable
from orchestration.core.csv_columns import open_bytes, quoted_cell, refuse, refuse_where
from orchestration.core.errors import InputError
from orchestration.core.provenance import shared_buffer_words
from orchestration.core.records import Ints
from orchestration.core.topology import Testbed
from orchestration.core.units import UnitError, format_size, parse_duration_ns, parse_rate_bps
from orchestration.exchange.hpcc_config import (
    BASE_NS,
    CONGESTION_CONTROL,
    ThresholdMaps,
    window_bytes,
)
from orchestration.exchange.textrows import CHECK_FORMAT, Rows, concatenated, head, rows

DEFAULT_PAYLOAD_BYTES = 1000
DEFAULT_BUFFER_MIB = 16
MAX_NODES = 1 << 16

# closloop's exports have a tenth decimal, 5: the simulator truncates its double to nanoseconds.
_SECONDS = re.compile(rb"(\d{1,9})(?:\.(\d{0,9})5?0*)?")
# The values of LB_MODE in ConWeave's fork.
_LOAD_BALANCING = {"2": "DRILL", "3": "CONGA", "6": "LetFlow", "9": "ConWeave"}


@dataclass(frozen=True)
class HpccFlows:
    """The rows of a flow file: arrays of shape (flows,). `start_ns` is the simulator's time."""

    path: Path
    src: Ints
    dst: Ints
    group: Ints
    dport: Ints
    size_bytes: Ints
    start_ns: Ints

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class HpccLink:
    """A line of the topology file."""

    a: int
    b: int
    rate_bps: int
    delay_ns: int
    error_rate: float


@dataclass(frozen=True)
class HpccTopology:
    """The content of a topology file. `nodes` counts the nodes, `switches` are ids of nodes."""

    path: Path
    nodes: int
    switches: frozenset[int]
    links: tuple[HpccLink, ...]

    @property
    def hosts(self) -> list[int]:
        """The ids of the hosts, in ascending order."""
        return [node for node in range(self.nodes) if node not in self.switches]


def read_flows(path: Path, topology: HpccTopology) -> HpccFlows:
    """Read a flow file: the count, then a line for each flow; later lines are ignored.

    ConWeave's format has no destination port. Raises InputError, with the line, for flows that the
    simulator could not send either.
    """
    (first,) = head(path, 1)
    if len(first) != 1 or not first[0].isdigit():
        refuse(path, 1, "does not begin with the number of flows", CHECK_FORMAT)
    parts: list[tuple[Ints, ...]] = []
    before_ns = -1
    for block in rows(path, (6, 5), what="a flow", first=2, count=int(first[0])):
        src, dst = (block.integers(column, "the host") for column in (0, 1))
        group = block.integers(2, "the priority group")
        ported = len(block.columns) == 6
        dport = block.integers(3, "the port") if ported else np.zeros_like(src)
        size = block.integers(4 if ported else 3, "the size", minimum=1)
        start_ns = _starts(block)
        check_hosts(block, topology, src, dst)
        falls = np.diff(start_ns, prepend=before_ns) < 0
        what = "starts before the flow above it"
        refuse_where(falls, path, block.lines, what, "sort the flows by their start")
        before_ns = int(start_ns[-1])
        parts.append((src, dst, group, dport, size, start_ns))
    if not parts:
        raise InputError.single(str(path), "has no flows", "give a file with one flow or more")
    return HpccFlows(path, *concatenated(parts))


def _starts(block: Rows) -> Ints:
    """Return the last column, seconds with at most nine decimals, as exact ns."""
    starts = []
    for row, cell in enumerate(block.columns[-1]):
        match = _SECONDS.fullmatch(cell)
        if match is None:
            what = f"the start is {quoted_cell(cell)}, not seconds with up to nine decimals"
            block.refuse(row, what, "write it like 2.000013457")
        starts.append(int(match[1]) * 10**9 + int((match[2] or b"").ljust(9, b"0")))
    return np.array(starts, dtype=np.int64)


def check_hosts(block: Rows, topology: HpccTopology, src: Ints, dst: Ints) -> None:
    """Raise InputError, with the line, for a flow whose ends are not two different hosts."""
    for ends in (src, dst):
        for row in np.flatnonzero(~np.isin(ends, topology.hosts))[:1]:
            known = "is a switch" if ends[row] < topology.nodes else "does not exist"
            what = f"node {ends[row]} {known} in {topology.path}"
            block.refuse(row, what, "give the topology file of the same run")
    for row in np.flatnonzero(src == dst)[:1]:
        block.refuse(row, f"the flow goes from {src[row]} to itself", CHECK_FORMAT)


def read_topology(path: Path) -> HpccTopology:
    """Read a topology file: counts, ids of switches, then a line for each link.

    Later lines are ignored. Raises InputError with the line of the first problem.
    """
    counts, ids = head(path, 2)
    try:
        nodes, switch_count, link_count = (int(cell) for cell in counts)
    except ValueError:
        refuse(path, 1, "is not `nodes switches links`, three numbers", CHECK_FORMAT)
    if not 0 < nodes <= MAX_NODES or not 0 <= switch_count <= nodes or link_count < 0:
        refuse(path, 1, f"{nodes} nodes with {switch_count} switches are impossible", CHECK_FORMAT)
    if len(ids) != switch_count or not all(cell.isdigit() and int(cell) < nodes for cell in ids):
        what = f"does not list {switch_count} switch ids, each below {nodes}"
        refuse(path, 2, what, "correct the counts of the first line, or this line")
    switches = frozenset(int(cell) for cell in ids)
    if len(switches) != switch_count:
        refuse(path, 2, "lists a switch twice", "list each switch once")
    links = tuple(
        _link(block, row, nodes)
        for block in rows(path, (5,), what="a link", first=3, count=link_count)
        for row in range(len(block.lines))
    )
    return HpccTopology(path, nodes, switches, links)


def _link(block: Rows, row: int, nodes: int) -> HpccLink:
    a, b, rate, delay, loss = (column[row].decode("ascii", "replace") for column in block.columns)
    try:
        ends = int(a), int(b)
        error_rate = float(loss)
        link = HpccLink(*ends, _rate(rate), parse_duration_ns(delay), error_rate)
    except UnitError as error:
        block.refuse(row, str(error), "write rates like 25Gbps and delays like 1000ns")
    except ValueError:
        block.refuse(row, "is not `src dst rate delay error_rate`", CHECK_FORMAT)
    if not all(0 <= end < nodes for end in ends) or ends[0] == ends[1]:
        block.refuse(row, f"links {a} and {b}; nodes are 0 to {nodes - 1}", CHECK_FORMAT)
    if link.rate_bps == 0 or not 0 <= error_rate <= 1:
        block.refuse(row, "has no rate, or a loss that is not a probability", CHECK_FORMAT)
    return link


def _rate(text: str) -> int:
    """Return a rate in bit/s from ns-3's `100Gbps`, `25Gb/s` or `40000Mbps`. Raises UnitError."""
    match = re.fullmatch(r"([0-9.]+)([kKMGT]?)(bps|b/s)", text)
    if not match:
        raise UnitError(f"{text!r} is not a rate in bits per second")
    number, prefix, _ = match.groups()
    return parse_rate_bps(f"{number}{prefix.replace('k', 'K')}bps")


@dataclass(frozen=True)
class HpccConfig:
    """The settings of a config file that a run folder can hold.

    `thresholds` maps a rate to kmin, kmax and pmax. `link_down` is the simulator's time in ns at
    which a link goes down, and the link's two nodes. `stop_ns` and `mode` (CC_MODE) are 0 if they
    are not given. `values` has the text of every line by its key.
    """

    payload_bytes: int = DEFAULT_PAYLOAD_BYTES
    buffer_bytes: int = DEFAULT_BUFFER_MIB << 20
    congestion_control: str = ""
    thresholds: ThresholdMaps | None = None
    link_down: tuple[int, int, int] | None = None
    stop_ns: int = 0
    mode: int = 0
    values: Mapping[str, str] = field(default_factory=dict)


def read_config(path: Path) -> HpccConfig:
    """Read a config file of lines `KEY value...` in any order.

    Of lines with the same key the last one counts, as in the simulator's own reader. Raises
    InputError, with the line, for a value that its key cannot have.
    """
    values = _config_values(path)

    def numbers(key: str, count: int, default: float = 0) -> list[float]:
        if key not in values:
            return [default]
        line, cells = values[key]
        try:
            given = [float(cell) for cell in cells[:count]]
        except ValueError:
            given = []
        if len(given) < count or min(given) < 0:
            refuse(path, line, f"{key} needs {count} numbers of 0 or more", CHECK_FORMAT)
        return given

    def number(key: str, default: float = 0) -> float:
        return numbers(key, 1, default)[0]

    down = numbers("LINK_DOWN", 3)
    mode = int(number("CC_MODE"))
    known = CONGESTION_CONTROL.get(mode, f"cc-mode-{number('CC_MODE'):g}")
    return HpccConfig(
        payload_bytes=int(number("PACKET_PAYLOAD_SIZE")) or DEFAULT_PAYLOAD_BYTES,
        buffer_bytes=(int(number("BUFFER_SIZE")) or DEFAULT_BUFFER_MIB) << 20,
        congestion_control=known if "CC_MODE" in values else "",
        # without it no switch marks, whatever the maps have (`SwitchNode::EcnEnabled`)
        thresholds=_thresholds(path, values) if number("ENABLE_QCN", 1) else None,
        link_down=(BASE_NS + int(down[0]) * 1000, int(down[1]), int(down[2])) if down[0] else None,
        stop_ns=round(number("SIMULATOR_STOP_TIME") * 10**9),
        mode=mode,
        values={key: " ".join(words) for key, (_, words) in values.items()},
    )


def _config_values(path: Path) -> dict[str, tuple[int, list[str]]]:
    """Return key -> (line number, words) of a config file; `#` begins a comment."""
    values = {}
    try:
        text = open_bytes(path).read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.single(str(path), f"cannot be read: {error}", CHECK_FORMAT) from error
    for number, line in enumerate(text.splitlines(), start=1):
        key, *words = line.split("#")[0].split() or [""]
        if key and not re.fullmatch(r"[A-Z][A-Z0-9_]*", key):
            refuse(path, number, f"{key!r} is not a key of a config file", CHECK_FORMAT)
        values[key] = (number, words)
    return values


def _thresholds(path: Path, values: dict[str, tuple[int, list[str]]]) -> ThresholdMaps | None:
    maps: list[dict[int, float]] = []
    for key in ("KMIN_MAP", "KMAX_MAP", "PMAX_MAP"):
        if key not in values:
            return None
        line, cells = values[key]
        try:
            count = int(cells[0])
            maps.append({int(cells[1 + 2 * n]): float(cells[2 + 2 * n]) for n in range(count)})
        except (ValueError, IndexError):
            what = f"{key} is not a count and that many pairs of rate and value"
            refuse(path, line, what, "write it like KMIN_MAP 1 25000000000 100")
    kmin, kmax, pmax = maps
    line = values["KMIN_MAP"][0]
    for rate in kmin:
        if rate not in kmax or rate not in pmax:
            what = f"KMIN_MAP has a rate {rate} that KMAX_MAP or PMAX_MAP lacks"
            refuse(path, line, what, "give all three maps the same rates")
        if not (0 <= kmin[rate] <= kmax[rate] and 0 <= pmax[rate] <= 1):
            what = f"the thresholds of rate {rate} are not kmin <= kmax with pmax in 0..1"
            refuse(path, line, what, "correct the maps")
    return {rate: (round(kmin[rate] * 1000), round(kmax[rate] * 1000), pmax[rate]) for rate in kmin}


def run_settings(config: HpccConfig, topology: HpccTopology, testbed: Testbed) -> dict[str, str]:
    """Return the settings that decide a run's results and that a testbed does not have, as text.

    Without a config file these are the simulator's defaults. Its switches have one shared buffer,
    and always pause a port's input at a share of the free buffer (`switch-mmu.cc`). ConWeave's fork
    (conweave-project/conweave-ns3, `scratch/network-load-balance.cc`) can switch PFC off, and adds
    load balancing and IRN.
    """

    def number(key: str, default: float) -> float:
        try:
            return float(config.values.get(key) or default)
        except ValueError:
            return 1.0  # text that is not a number counts as on

    settings = {"shared-buffer": shared_buffer_words(config.buffer_bytes)}
    if number("ENABLE_PFC", 1):
        settings["pfc"] = "PFC"
    if number("LB_MODE", 0):
        mode = config.values["LB_MODE"]
        settings["load-balancing"] = f"load balancing by {_LOAD_BALANCING.get(mode, mode)}"
    rates = [link.error_rate for link in topology.links if link.error_rate]
    if loss := number("ERROR_RATE_PER_LINK", 0):
        rates.append(loss)
    if rates:
        settings["link-loss"] = f"random loss of up to {max(rates):g} of a link's packets"
    # the default is a window (`uint32_t has_win = 1`)
    if config.mode and number("HAS_WIN", 1):
        window = window_bytes(testbed, PathTable(testbed), config.payload_bytes)
        settings["window"] = f"a window of at most {format_size(window, 1)} for each flow"
    if number("ENABLE_IRN", 0):
        settings["loss-recovery"] = "IRN's loss recovery"
    return settings
