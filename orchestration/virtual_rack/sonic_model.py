"""The virtual rack's SONiC-like switch as data: its ports, its ASIC's traits, its initial rows.

Names, object ids and rows are SONiC's: the stock configuration in CONFIG_DB (sonic-buildimage,
qos_config.j2), the maps from names to objects in COUNTERS_DB, and the capabilities in STATE_DB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from inventory.rack import SONIC_QUEUE
from orchestration.agent.linux import qdiscs
from orchestration.virtual_rack.layout import Layout

# Types of SAI objects, encoded in the upper bits of their ids.
_PORT, _WRED, _QUEUE = 1, 19, 21
QUEUES = 8
_FIRST_WITH_MARKS = _FIRST_WITH_STAMPS = "202505"
_FIRST_WITH_STREAMS = "202511"

Rows = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Traits:
    """The features of a SONiC release and an ASIC.

    Args:
        release: SONiC's release, such as `202505`.
        hwsku: the hardware model.
        platform: SONiC's name of the platform.
        asic: SONiC's name of the ASIC's vendor.
        cell_bytes: the size of a cell of the buffer.
        step_cells: the ASIC rounds thresholds up to a multiple of this many cells.
        counts_marks: whether the ASIC counts ECN marks per queue; SONiC shows them from 202505 on.
        bulk_polls: whether counters are read in bulk; such polls have a time from 202505 on.
        streams: whether there is High Frequency Telemetry, which SONiC has from 202511 on.
        wred_profiles: the size of the ASIC's table of WRED profiles, of which each enabled colour
            of a profile takes one entry.
        one_watchdog_action: whether all watched ports must have the same action (Broadcom's
            DLR_INIT).
        buffer_model: `traditional` or `dynamic`.
    """

    release: str = _FIRST_WITH_MARKS
    hwsku: str = "closloop-virtual"
    platform: str = "x86_64-closloop_virtual-r0"
    asic: str = "virtual"
    cell_bytes: int = 256
    step_cells: int = 1
    counts_marks: bool = True
    bulk_polls: bool = True
    streams: bool = False
    wred_profiles: int = 1024
    one_watchdog_action: bool = False
    buffer_model: str = "traditional"


@dataclass(frozen=True)
class KernelQueue:
    """A queue in the kernel: the handle and parent of its RED qdisc, and its limit in bytes."""

    handle: int
    parent: int
    buffer_bytes: int


@dataclass(frozen=True)
class PortModel:
    """One port. `queues` are the queues that carry packets, by their numbers in SONiC."""

    name: str
    rate_bps: int
    queues: dict[int, KernelQueue]


@dataclass(frozen=True)
class SwitchModel:
    """One switch. `ports` are in the order of their indices."""

    name: str
    ports: tuple[PortModel, ...]
    mtu_bytes: int = 1500
    traits: Traits = field(default_factory=Traits)

    @property
    def pool_bytes(self) -> int:
        """Return how many bytes a queue may hold at most. No threshold can be higher."""
        return max(leaf.buffer_bytes for port in self.ports for leaf in port.queues.values())

    @property
    def counts_marks(self) -> bool:
        """Whether release and ASIC count ECN marks per queue."""
        return self.traits.counts_marks and self.traits.release >= _FIRST_WITH_MARKS

    @property
    def stamps_polls(self) -> bool:
        """Whether syncd writes the times of its polls."""
        return self.traits.bulk_polls and self.traits.release >= _FIRST_WITH_STAMPS

    @property
    def streams(self) -> bool:
        """Whether release and ASIC have High Frequency Telemetry."""
        return self.traits.streams and self.traits.release >= _FIRST_WITH_STREAMS

    def rounded(self, threshold_bytes: int) -> int:
        """Return a threshold as the ASIC rounds it."""
        step = self.traits.cell_bytes * self.traits.step_cells
        return -(-threshold_bytes // step) * step


@dataclass(frozen=True)
class RedSettings:
    """The ASIC's RED settings of one queue, for which None stands if the queue never marks.

    `percent` is the marking probability at `kmax_bytes`.
    """

    kmin_bytes: int
    kmax_bytes: int
    percent: int


@dataclass(frozen=True)
class QueueCounts:
    """Counters of one queue since the switch started. `depth_bytes` is its present length."""

    depth_bytes: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    marked_packets: int = 0
    dropped_packets: int = 0


@dataclass(frozen=True)
class PortCounts:
    """Counters of one port since the switch started, as in /proc/net/dev."""

    rx_bytes: int = 0
    rx_packets: int = 0
    rx_errors: int = 0
    rx_drops: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    tx_errors: int = 0
    tx_drops: int = 0


class ForwardingPlane(Protocol):
    """The forwarding plane, as orchagent and syncd use it."""

    def set_red(self, port: str, queue: int, settings: RedSettings | None) -> None:
        """Set RED of one queue; None stops it from marking."""

    def queues(self) -> Mapping[tuple[str, int], QueueCounts]:
        """Read all queues that carry packets, by port and number."""

    def ports(self) -> Mapping[str, PortCounts]:
        """Read the counters of all ports, by name."""


def switch_model(layout: Layout, device: str, traits: Traits | None = None) -> SwitchModel:
    """Return the model of a switch of a virtual rack."""
    testbed = layout.testbed
    ports = tuple(
        PortModel(
            name=layout.interface(port),
            rate_bps=port.rate_bps,
            queues={
                SONIC_QUEUE + queue.klass: KernelQueue(
                    qdiscs.leaf_handle(queue.klass),
                    qdiscs.leaf_parent(queue.klass, testbed.queues_per_port),
                    queue.buffer_bytes,
                )
                for queue in testbed.queues_at(port)
            },
        )
        for port in testbed.ports_of[device]
    )
    return SwitchModel(device, ports, testbed.mtu_bytes, traits or Traits())


def port_oid(port_index: int) -> str:
    """Return the SAI object id of a port."""
    return object_id(_PORT, port_index + 1)


def queue_oid(port_index: int, queue: int) -> str:
    """Return the SAI object id of a port's queue."""
    return object_id(_QUEUE, port_index * QUEUES + queue + 1)


def wred_oid(number: int) -> str:
    """Return the SAI object id of the `number`-th WRED profile that was created, counted from 1."""
    return object_id(_WRED, number)


def object_id(kind: int, number: int) -> str:
    """Return the id of the `number`-th object of a SAI type, counted from 1."""
    return f"oid:{kind << 48 | number:#x}"


def config_rows(model: SwitchModel) -> Rows:
    """Return the rows of CONFIG_DB of a switch that nobody has configured."""
    low, high = min(1 << 20, model.pool_bytes // 2), min(1 << 21, model.pool_bytes)
    pool = {"mode": "dynamic", "size": str(model.rounded(model.pool_bytes) * len(model.ports))}
    rows: Rows = {
        "DEVICE_METADATA|localhost": {
            "hostname": model.name,
            "hwsku": model.traits.hwsku,
            "platform": model.traits.platform,
            "type": "LeafRouter",
            "buffer_model": model.traits.buffer_model,
        },
        "SCHEDULER|scheduler.0": {"type": "DWRR", "weight": "14"},
        "SCHEDULER|scheduler.1": {"type": "DWRR", "weight": "15"},
        "WRED_PROFILE|AZURE_LOSSLESS": _stock_profile(low, high),
        "DSCP_TO_TC_MAP|AZURE": _stock_dscp(),
        "TC_TO_QUEUE_MAP|AZURE": {str(tc): str(tc) for tc in range(8)},
        "TC_TO_PRIORITY_GROUP_MAP|AZURE": dict(
            zip("01234567", ("0", "0", "0", "3", "4", "0", "0", "7"), strict=True)
        ),
        "MAP_PFC_PRIORITY_TO_QUEUE|AZURE": {str(priority): str(priority) for priority in range(8)},
        "BUFFER_POOL|egress_pool": {"type": "egress", **pool},
        "BUFFER_POOL|ingress_lossless_pool": {"type": "ingress", **pool},
        "BUFFER_PROFILE|egress_lossless_profile": {
            "pool": "egress_pool",
            "size": "0",
            "dynamic_th": "7",
        },
        "BUFFER_PROFILE|ingress_lossy_profile": {
            "pool": "ingress_lossless_pool",
            "size": "0",
            "dynamic_th": "3",
        },
    }
    for group in ("PORT", "QUEUE", "QUEUE_WATERMARK", "PFCWD"):
        rows[f"FLEX_COUNTER_TABLE|{group}"] = {"FLEX_COUNTER_STATUS": "enable"}
    for port_index, port in enumerate(model.ports):
        rows |= _port_rows(model, port_index, port)
    return rows


def _port_rows(model: SwitchModel, port_index: int, port: PortModel) -> Rows:
    rows: Rows = {
        f"PORT|{port.name}": {
            "admin_status": "up",
            "alias": f"Eth{port_index + 1}",
            "index": str(port_index + 1),
            "lanes": ",".join(str(4 * port_index + lane) for lane in range(4)),
            "mtu": str(model.mtu_bytes),
            "speed": str(port.rate_bps // 1_000_000),
        },
        f"PORT_QOS_MAP|{port.name}": {
            "dscp_to_tc_map": "AZURE",
            "tc_to_queue_map": "AZURE",
            "tc_to_pg_map": "AZURE",
            "pfc_to_queue_map": "AZURE",
            "pfc_enable": "3,4",
            "pfcwd_sw_enable": "3,4",
        },
        f"BUFFER_PG|{port.name}|0": {"profile": "ingress_lossy_profile"},
        f"BUFFER_QUEUE|{port.name}|3-4": {"profile": "egress_lossless_profile"},
    }
    headroom = "NULL"
    if model.traits.buffer_model != "dynamic":
        # buffermgrd writes both rows, from the port's speed, its cable's length and pfc_enable
        headroom = f"pg_lossless_{port.rate_bps // 1_000_000}_5m_profile"
        rows[f"BUFFER_PROFILE|{headroom}"] = {
            "pool": "ingress_lossless_pool",
            "size": "1248",
            "xon": "1248",
            "xoff": "96928",
            "dynamic_th": "0",
        }
    rows[f"BUFFER_PG|{port.name}|3-4"] = {"profile": headroom}
    for queue in range(7):
        row = {"scheduler": "scheduler.0"}
        if queue in (3, 4):
            row = {"scheduler": "scheduler.1", "wred_profile": "AZURE_LOSSLESS"}
        rows[f"QUEUE|{port.name}|{queue}"] = row
    return rows


def _stock_profile(low: int, high: int) -> dict[str, str]:
    row = {"ecn": "ecn_all"}
    for colour in ("green", "yellow", "red"):
        row[f"wred_{colour}_enable"] = "true"
        row[f"{colour}_min_threshold"] = str(low)
        row[f"{colour}_max_threshold"] = str(high)
        row[f"{colour}_drop_probability"] = "5"
    return row


def _stock_dscp() -> dict[str, str]:
    special = {3: "3", 4: "4", 5: "2", 8: "0", 46: "5", 48: "6"}
    return {str(dscp): special.get(dscp, "1") for dscp in range(64)}


def counter_maps(model: SwitchModel) -> Rows:
    """Return the maps from names to objects in COUNTERS_DB."""
    maps: Rows = {"COUNTERS_PORT_NAME_MAP": {}}
    for part in ("NAME", "PORT", "INDEX", "TYPE"):
        maps[f"COUNTERS_QUEUE_{part}_MAP"] = {}
    for port_index, queue, oid in queue_oids(model):
        name = model.ports[port_index].name
        maps["COUNTERS_PORT_NAME_MAP"][name] = port_oid(port_index)
        maps["COUNTERS_QUEUE_NAME_MAP"][f"{name}:{queue}"] = oid
        maps["COUNTERS_QUEUE_PORT_MAP"][oid] = port_oid(port_index)
        maps["COUNTERS_QUEUE_INDEX_MAP"][oid] = str(queue)
        maps["COUNTERS_QUEUE_TYPE_MAP"][oid] = "SAI_QUEUE_TYPE_UNICAST"
    return maps


def queue_oids(model: SwitchModel) -> Iterator[tuple[int, int, str]]:
    """Yield, for every queue, the index of its port, its number and its object id."""
    for port_index in range(len(model.ports)):
        for queue in range(QUEUES):
            yield port_index, queue, queue_oid(port_index, queue)


def capability_rows(model: SwitchModel) -> Rows:
    """Return the capabilities in STATE_DB. Before 202505 there are no rows about counting marks.

    Only Nvidia's switches state the size of their cells (sonic-buildimage, platform/mellanox).
    """
    one_action = "true" if model.traits.one_watchdog_action else "false"
    rows: Rows = {"SWITCH_CAPABILITY|switch": {"PFC_DLR_INIT_CAPABLE": one_action}}
    if model.traits.asic == "mellanox":
        rows["ASIC_TABLE|MELLANOX-SPECTRUM"] = {"cell_size": str(model.traits.cell_bytes)}
    if model.traits.release < _FIRST_WITH_MARKS:
        return rows
    supported = {"isSupported": "true" if model.counts_marks else "false"}
    return rows | {
        f"QUEUE_COUNTER_CAPABILITIES|WRED_ECN_QUEUE_{name}_COUNTER": dict(supported)
        for name in ("ECN_MARKED_PKT", "ECN_MARKED_BYTE", "WRED_DROPPED_PKT", "WRED_DROPPED_BYTE")
    }


def port_state_rows(model: SwitchModel) -> Rows:
    """Return the rows of ports in STATE_DB, which PortsOrch writes when a port comes up."""
    return {
        f"PORT_TABLE|{port.name}": {
            "state": "ok",
            "admin_status": "up",
            "netdev_oper_status": "up",
            "mtu": str(model.mtu_bytes),
            "speed": str(port.rate_bps // 1_000_000),
        }
        for port in model.ports
    }


def version_file(model: SwitchModel) -> str:
    """Return the content of /etc/sonic/sonic_version.yml."""
    traits = model.traits
    return (
        f"build_version: 'SONiC.{traits.release}-virtual'\n"
        f"release: '{traits.release}'\n"
        f"asic_type: {traits.asic}\n"
    )
