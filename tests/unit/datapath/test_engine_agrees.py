"""The packet engine and a slow model of it give the same readings on drawn small fabrics."""

import os
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestration.datapath.flows import PARAMETER_ORDER
from orchestration.datapath.library import BUILD_VARIABLE, load_engine
from orchestration.datapath.policy_dcqcn import DCQCN_SETS
from tests.unit.datapath.model import Model
from tests.unit.datapath.model_ports import NEVER, SwitchPort

G = 10**9
US = 1_000


@dataclass(frozen=True)
class Case:
    """What both are made from, with the fields of api.h, and at which times they are read.

    A step is a time in ns, and what is set then: thresholds by queue, parameters by port.
    """

    fabric: dict
    devices: list
    ports: list
    limit_bytes: list
    policy: str
    nics: dict
    flows: list
    steps: list


class Engine:
    """The engine through its C interface."""

    def __init__(self, case, build="release", hops=10**9):
        """Make it of a case; it runs for about `hops` at a time."""
        self._hops, self._case = hops, case
        # of what the sanitizers' subprocess asks for there is no other build
        with mock.patch.dict(os.environ, {BUILD_VARIABLE: os.environ.get(BUILD_VARIABLE, build)}):
            self._loaded = load_engine()
        self._ffi, self._lib = self._loaded.ffi, self._loaded.lib
        error = self._ffi.new("char[]", self._lib.CL_ERROR_BYTES)
        limits = np.array(case.limit_bytes, dtype=np.uint32)
        self._engine = self._lib.cl_engine_new(
            self._of("cl_fabric", [case.fabric]),
            self._of("cl_device", case.devices),
            self._of("cl_port", case.ports),
            self._ffi.from_buffer("uint32_t[]", limits),
            error,
        )
        assert self._engine, self._ffi.string(error)
        policy = self._lib.cl_policy_named(case.policy.encode())
        nics, flows = self._of("cl_nics", [case.nics]), self._of("cl_flow", case.flows)
        self._check(self._lib.cl_engine_post(self._engine, policy, nics, flows, len(case.flows)))

    def _check(self, result):
        assert result >= 0, self._ffi.string(self._lib.cl_engine_error(self._engine))
        return result

    def _of(self, struct, rows):
        found = np.zeros(len(rows), dtype=self._loaded.dtype(struct))
        for row, values in zip(found, rows, strict=True):
            for name, value in values.items():
                row[name] = value
        return self._ffi.from_buffer(f"struct {struct}[]", found)

    def run(self, until_ns):
        while not self._check(self._lib.cl_engine_run(self._engine, until_ns, self._hops)):
            pass

    def set_thresholds(self, queue, *numbers):
        columns = [self._ffi.new("uint32_t *", number) for number in (queue, *numbers)]
        self._check(self._lib.cl_engine_set_thresholds(self._engine, 1, *columns))

    def set_parameters(self, port, parameters, cnp_interval_ns):
        numbers = [
            self._ffi.new("uint32_t *", port),
            self._ffi.new("uint32_t[]", parameters),
            self._ffi.new("uint64_t *", cnp_interval_ns),
        ]
        self._check(self._lib.cl_engine_set_parameters(self._engine, 1, *numbers))

    def read(self):
        case = self._case
        tables = {
            "queues": ("cl_queue_state", case.fabric["queues"]),
            "pauses": ("cl_pause_state", case.fabric["queues"]),
            "buffers": ("cl_buffer_state", sum(d["is_switch"] for d in case.devices)),
            "nics": ("cl_nic_state", sum(not self._is_switch(p) for p in case.ports)),
            "flows": ("cl_flow_result", len(case.flows)),
            "counts": ("cl_counts", 1),
        }
        return {name: self._table(name, *table) for name, table in tables.items()}

    def _is_switch(self, port):
        return self._case.devices[port["device"]]["is_switch"]

    def _table(self, name, struct, count):
        found = np.zeros(count, dtype=self._loaded.dtype(struct))
        buffer = self._ffi.from_buffer(f"struct {struct}[]", found)
        getattr(self._lib, f"cl_engine_{name}")(self._engine, buffer)
        return [dict(zip(found.dtype.names, row.tolist(), strict=True)) for row in found]

    def close(self):
        self._lib.cl_engine_free(self._engine)


class ModelOf(Model):
    """The model, made from a case and read as the engine is."""

    def __init__(self, case):
        def of(rows):
            return [SimpleNamespace(**row) for row in rows]

        super().__init__(
            SimpleNamespace(**case.fabric), of(case.devices), of(case.ports), case.limit_bytes
        )
        self.post(case.policy, SimpleNamespace(**case.nics), of(case.flows))

    def read(self):
        names = load_engine().dtype("cl_queue_state").names
        ports = [port for port in self.ports if isinstance(port, SwitchPort)]
        switches = sorted({port.switch for port in ports}, key=lambda s: s.spec.number)
        return {
            "queues": [{name: getattr(q, name) for name in names} for q in self.queues()],
            "pauses": [
                self.pause_state(port, klass)
                for port in sorted(ports, key=lambda port: port.spec.first_queue)
                for klass in range(self.fabric.classes)
            ],
            "buffers": [
                {
                    "lossless_drops": switch.lossless_drops,
                    "used_bytes": switch.shared_bytes + switch.headroom_bytes,
                    "headroom_bytes": switch.headroom_bytes,
                }
                for switch in switches
            ],
            "nics": [self.nic_state(nic) for nic in self.all_nics()],
            "flows": [self.flow_result(flow) for flow in self.flows],
            "counts": [self.counts()],
        }

    def pause_state(self, port, klass):
        priority = self.fabric.priority[klass]
        since_ns, _ = port.stopped.get(priority, (self.now, 0))
        stopping_since = port.stopping.get(klass, self.now)
        if not self.fabric.shared_buffer:
            return dict.fromkeys(load_engine().dtype("cl_pause_state").names, 0)
        return {
            "frames_received": port.frames_received[priority],
            "paused_ns": port.paused_ns[priority] + self.now - since_ns,
            "frames_sent": port.frames_sent[klass],
            "stopping_ns": port.stopping_ns[klass] + self.now - stopping_since,
            "held_bytes": port.shared_bytes[klass] + port.headroom_bytes[klass],
            "headroom_bytes": port.headroom_bytes[klass],
        }

    def nic_state(self, nic):
        counters = ("cnps", "resent", "rtt_ns", "received_packets", "out_of_order_packets")
        return {
            **{name: getattr(nic, name) for name in (*counters, "timeouts")},
            "rate_bps": sum(flow.policy.rate_bps for flow in nic.unfinished()),
            "port": self.ports.index(nic),
            "flows": len(nic.unfinished()),
        }

    def flow_result(self, flow):
        of_others = {
            "rate_bps": flow.policy.rate_bps,
            "acked_bytes": min(flow.acked * self.nics.payload_bytes, flow.spec.bytes),
        }
        names = load_engine().dtype("cl_flow_result").names
        return {name: of_others.get(name, getattr(flow, name, None)) for name in names}

    def counts(self):
        return {
            "hops": self.hops,
            **{f"data_{name}": count for name, count in self.packets.items()},
            **{f"bytes_{name}": count for name, count in self.bytes.items()},
            "pauses": self.pauses,
            "flows_received": sum(flow.received_ns != NEVER for flow in self.flows),
            "flows_done": sum(flow.done_ns != NEVER for flow in self.flows),
        }

    def close(self):
        pass


def readings(case, one):
    """Yield what is read at each step, before the step's settings."""
    for at_ns, thresholds, parameters in case.steps:
        one.run(at_ns)
        yield at_ns, one.read()
        for setting in thresholds:
            one.set_thresholds(*setting)
        for setting in parameters:
            one.set_parameters(*setting)
    one.close()


def differences(case, *engine):
    """Return the first reading's differences, as lines; none if all readings are equal."""
    for (at_ns, of_engine), (_, of_model) in zip(
        readings(case, Engine(case, *engine)), readings(case, ModelOf(case)), strict=True
    ):
        found = [
            f"{at_ns} ns: {table}[{row}].{name}: engine {value}, model {wanted[name]}"
            for table, rows in of_engine.items()
            for row, (values, wanted) in enumerate(zip(rows, of_model[table], strict=True))
            for name, value in values.items()
            if wanted[name] != value
        ]
        if found:
            return found
    return []


@st.composite
def links(draw):
    """Draw a fabric: the number of its switches, and its cables as pairs of devices.

    Switches are the first devices: a line of one to three, or two leaves under two spines.
    """
    switches = draw(st.integers(1, 4))
    if switches == 4:
        between, leaves = [(leaf, spine) for leaf in (0, 1) for spine in (2, 3)], (0, 1)
    else:
        between, leaves = [(n, n + 1) for n in range(switches - 1)], tuple(range(switches))
    # a host has one NIC or two, which may be at the same switch
    attachments = st.lists(st.sampled_from(leaves), min_size=1, max_size=2)
    hosts = draw(st.lists(attachments, min_size=2, max_size=6))
    cables = [(leaf, switches + host) for host, leaves in enumerate(hosts) for leaf in leaves]
    return switches, len(hosts), draw(st.permutations(between + cables))


RATES = st.sampled_from([7 * G, 10 * G, 25 * G, 100 * G, 400 * G, 800 * G])
DELAYS = st.sampled_from([1, 2, 3, 50, 346, 1000, 3001])
QUANTA = st.sampled_from([60, 300, 65535])
BYTES = st.integers(0, 40_000)


@st.composite
def fabrics(draw):
    """Draw the arrays that a fabric is made from: fabric, devices, ports, limits."""
    switches, hosts, cables = draw(links())
    classes = draw(st.integers(1, 3))
    shared = draw(st.booleans())
    devices = [
        {
            "is_switch": int(number < switches),
            "ecmp_seed": draw(st.integers(0, 2**32 - 1)) if number < switches else 0,
            "pool_bytes": draw(st.integers(2_000, 120_000)) if number < switches else 0,
            "number": number if number < switches else 0,
        }
        for number in range(switches + hosts)
    ]
    shapes = [(draw(RATES), draw(DELAYS)) for _ in cables]
    ends = [
        (device, cable)
        for device in range(switches + hosts)
        for cable, pair in enumerate(cables)
        if device in pair
    ]
    ports = []
    for device, cable in ends:
        (other,) = set(cables[cable]) - {device}
        is_switch = device < switches
        ports.append(
            {
                "rate_bps": shapes[cable][0],
                "delay_ns": shapes[cable][1],
                "seed": draw(st.integers(0, 2**64 - 1)) if is_switch else 0,
                "device": device,
                "peer": ends.index((other, cable)),
                "first_queue": len(ports) * classes if is_switch else 0,
                "headroom_bytes": draw(BYTES) if is_switch else 0,
                "address": 0
                if is_switch
                else 0x0A000000 + draw(st.integers(0, 255)) * 256 + device,
            }
        )
    queues = sum(port["device"] < switches for port in ports) * classes
    of_classes = st.lists(st.integers(0, 2**18), min_size=classes, max_size=classes)
    quanta = st.lists(st.integers(100, 4_000), min_size=classes, max_size=classes)
    unused = [0] * (8 - classes)
    fabric = {
        "detect_ns": 0,
        "restore_ns": 0,
        "devices": len(devices),
        "ports": len(ports),
        "queues": queues,
        "classes": classes,
        "framing_bytes": draw(st.sampled_from([0, 24])),
        "marks_departures": draw(st.integers(0, 1)),
        "shared_buffer": int(shared),
        "xoff_bytes": draw(st.sampled_from([0, 0, 3_000, 20_000])) if shared else 0,
        "xon_offset_bytes": draw(st.sampled_from([0, 0, 1_500])) if shared else 0,
        "quanta": draw(QUANTA) if shared else 0,
        "lossless": draw(st.integers(0, 2**classes - 1)) if shared else 0,
        "action": 0,
        "alpha": draw(of_classes) + unused,
        "priority": draw(st.permutations(range(8)))[:classes] + unused,
        "quantum_bytes": draw(quanta) + unused,
    }
    limits = [draw(st.integers(1_000, 100_000)) for _ in range(queues)]
    return fabric, devices, ports, limits


def parameters(draw, policy):
    if policy == "fixed":
        return [draw(st.sampled_from([0, 0, 1_000, 3_333])), *[0] * 23]
    values = dict(DCQCN_SETS[draw(st.sampled_from(["mlx5", "hpcc", "paper"]))])
    values["rpg_time_reset"] = draw(st.sampled_from([5, 55, 300]))
    values["rpg_byte_reset"] = draw(st.sampled_from([0, 3_000, values["rpg_byte_reset"]]))
    numbers = [values[name] for name in PARAMETER_ORDER]
    return numbers + [0] * (24 - len(numbers))


@st.composite
def cases(draw):
    fabric, devices, ports, limits = draw(fabrics())
    policy = draw(st.sampled_from(["fixed", "dcqcn"]))
    intervals = st.sampled_from([0, 500, 4_000, 50_000])
    payload = draw(st.sampled_from([256, 1_000, 1_024, 4_096]))
    nics = {
        "cnp_interval_ns": draw(intervals),
        "timeout_ns": draw(st.sampled_from([7_000, 40_000, 500_000])),
        "payload_bytes": payload,
        "ack_every": draw(st.integers(1, 16)),
        "window_bytes": draw(st.sampled_from([0, 0, 1, 3, 20])) * payload,
        "parameters": parameters(draw, policy),
    }
    of_hosts = [n for n, port in enumerate(ports) if not devices[port["device"]]["is_switch"]]
    starts = st.one_of(st.sampled_from([0, 1_000]), st.integers(0, 20_000))
    sizes = st.one_of(
        st.integers(1, 60_000),
        st.integers(1, 10).map(lambda n: n * payload),
        st.sampled_from([20_000, 60_000]),
    )
    flows, popular = [], draw(st.sampled_from(of_hosts))
    for start in sorted(draw(st.lists(starts, min_size=1, max_size=8))):
        src = draw(st.sampled_from(of_hosts))
        others = [n for n in of_hosts if ports[n]["device"] != ports[src]["device"]]
        dst = draw(st.sampled_from(others))
        if popular in others and draw(st.booleans()):
            dst = popular
        flows.append(
            {
                "start_ns": start,
                "bytes": draw(sizes),
                "src_port": src,
                "dst_port": dst,
                "udp_source": draw(st.integers(0xC000, 0xFFFF)),
                "klass": draw(st.integers(0, fabric["classes"] - 1)),
                "is_ecn_capable": int(draw(st.integers(0, 3)) > 0),
            }
        )
    times = draw(st.lists(st.integers(0, 60_000), max_size=5))
    steps = []
    for at_ns in sorted([*times, 250_000]):
        thresholds = []
        for queue in draw(st.lists(st.integers(0, fabric["queues"] - 1), max_size=6)):
            kmin, kmax = sorted([draw(BYTES), draw(BYTES)])
            thresholds.append((queue, kmin, kmax, draw(st.integers(0, 2**32 - 1))))
        settings = [
            (port, parameters(draw, policy), draw(intervals))
            for port in draw(st.lists(st.sampled_from(of_hosts), max_size=1))
        ]
        steps.append((at_ns, thresholds, settings))
    # thresholds are there from the beginning, more often than not
    if draw(st.integers(0, 3)):
        everywhere = [(queue, 2_000, 15_000, 2**31) for queue in range(fabric["queues"])]
        steps.insert(0, (0, everywhere, []))
    return Case(fabric, devices, ports, limits, policy, nics, flows, steps)


BUILDS = st.sampled_from(["release", "checked"])
HOPS = st.sampled_from([1, 100, 10**9])


@pytest.mark.slow
@pytest.mark.timeout(900)  # to find the simplest fabric on which they differ takes minutes
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=cases(), build=BUILDS, hops=HOPS)
def test_all_readings_are_those_of_the_model(case, build, hops):
    """The build "checked" counts packets and bytes in each window, and says if any are missing."""
    assert differences(case, build, hops) == []


@pytest.mark.slow
@pytest.mark.sanitizers
@pytest.mark.timeout(900)
def test_the_sanitizers_find_nothing():
    """The same fabrics, in a process that has what AddressSanitizer needs from its beginning."""
    libraries = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        BUILD_VARIABLE: "sanitized",
        "CC": "gcc",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python has what it never frees
    }
    test = f"{__file__}::{test_all_readings_are_those_of_the_model.__name__}"
    # what the sanitizers print is lost if pytest captures it
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest_, "-p", "no:xdist", test], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
