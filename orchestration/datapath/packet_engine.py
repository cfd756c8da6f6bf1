"""The packet engine: a fabric of switches and RoCE NICs in this process, as arrays.

`engine/api.h` has the structs of which the arrays consist, and says what their fields mean. Times
are ns since time 0 of the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestration.core.errors import TrialError
from orchestration.core.records import Ints
from orchestration.datapath.library import EngineLibrary, load_engine

# Called every so many hops, a tenth of a second or so, the engine lets others have their turn.
_HOPS_PER_CALL = 1_000_000


@dataclass(frozen=True)
class FabricArrays:
    """A fabric: `settings` by the names of struct cl_fabric, and arrays of its parts.

    `devices` (devices,) and `ports` (ports,) are of the dtypes of struct cl_device and cl_port,
    `limit_bytes` (queues,) of uint32.
    """

    settings: Mapping[str, Any]
    devices: np.ndarray
    ports: np.ndarray
    limit_bytes: np.ndarray


def _remedy(error: str) -> str:
    if not error.startswith("no memory"):
        return "report this, with the campaign's file and the trial's seed"
    return "run fewer trials side by side with --jobs, or allow more memory: see `ulimit -v`"


class PacketEngine:
    """A fabric that runs in this process. It is not safe to use it from two threads at a time.

    The methods raise TrialError if the engine refuses its input, or cannot go on.
    """

    def __init__(self, fabric: FabricArrays, library: EngineLibrary | None = None) -> None:
        """Build the fabric. Raises NotReadyError if there is no library, and none can be built."""
        self.library = library or load_engine()
        ffi, lib = self.library.ffi, self.library.lib
        sizes = {
            "devices": len(fabric.devices),
            "ports": len(fabric.ports),
            "queues": len(fabric.limit_bytes),
        }
        settings = ffi.new("struct cl_fabric *", {**fabric.settings, **sizes})
        error = ffi.new(f"char[{lib.CL_ERROR_BYTES}]")
        made = lib.cl_engine_new(
            settings,
            self._pointer("cl_device", fabric.devices),
            self._pointer("cl_port", fabric.ports),
            self._numbers("uint32_t", fabric.limit_bytes),
            error,
        )
        if made == ffi.NULL:
            text = ffi.string(error).decode()
            raise TrialError(f"the packet engine refuses the fabric: {text}", _remedy(text))
        self._engine = ffi.gc(made, lib.cl_engine_free)
        self._switches = int(np.count_nonzero(fabric.devices["is_switch"]))
        self._queues, self._flows = sizes["queues"], 0
        at_hosts = fabric.devices["is_switch"][fabric.ports["device"]] == 0
        # the ports of NICs, in the order of `nics`
        self.nic_ports: Ints = np.flatnonzero(at_hosts)

    def _pointer(self, struct: str, array: np.ndarray) -> Any:
        """Return a pointer to the first of an array of structs, which stays the caller's."""
        if array.dtype != self.library.dtype(struct) or not array.flags.c_contiguous:
            raise TypeError(f"not an array of struct {struct}: {array.dtype}")
        return self.library.ffi.from_buffer(f"struct {struct}[]", array)

    def _numbers(self, ctype: str, values: np.ndarray) -> Any:
        """Return a pointer to a copy of `values` as numbers of a C type; None keeps it alive."""
        dtype = np.dtype(ctype.removesuffix("_t"))
        array = np.ascontiguousarray(values, dtype=dtype)
        return self.library.ffi.from_buffer(f"{ctype}[]", array)

    def _check(self, outcome: int) -> int:
        if outcome < 0:
            text = self.library.ffi.string(self.library.lib.cl_engine_error(self._engine)).decode()
            what = f"the packet engine: {text or 'it refuses what it is given'}"
            raise TrialError(what, _remedy(text))
        return outcome

    def policy(self, name: str) -> Any:
        """Return a congestion control that the library has. Raises KeyError for another name."""
        found = self.library.lib.cl_policy_named(name.encode())
        if found == self.library.ffi.NULL:
            raise KeyError(name)
        return found

    def post(self, policy: Any, nics: Mapping[str, Any], flows: np.ndarray) -> None:
        """Give all flows to the NICs, once.

        `policy` is that of `policy` or of one's own, `nics` has the fields of struct cl_nics, and
        `flows` (flows,) are of the dtype of struct cl_flow, ordered by their starts.
        """
        lib, ffi = self.library.lib, self.library.ffi
        settings = ffi.new("struct cl_nics *", dict(nics))
        pointer = self._pointer("cl_flow", flows) if len(flows) else ffi.NULL
        self._check(lib.cl_engine_post(self._engine, policy, settings, pointer, len(flows)))
        self._flows = len(flows)

    def run(self, until_ns: int, meanwhile: Callable[[int], None] | None = None) -> None:
        """Let everything happen until `until_ns`, that included.

        `meanwhile` is called with the engine's time several times a second. The interpreter's lock
        is released while the engine runs.
        """
        lib = self.library.lib
        while not self._check(lib.cl_engine_run(self._engine, until_ns, _HOPS_PER_CALL)):
            if meanwhile is not None:
                meanwhile(self.now_ns)

    @property
    def now_ns(self) -> int:
        """The last nanosecond of which everything has happened."""
        return int(self.library.lib.cl_engine_now(self._engine))

    def _read(self, struct: str, count: int, read: Callable[..., object]) -> np.ndarray:
        states = np.zeros(count, dtype=self.library.dtype(struct))
        if count:
            read(self._engine, self._pointer(struct, states))
        return states

    def queues(self) -> np.ndarray:
        """Return the state of every queue, struct cl_queue_state."""
        return self._read("cl_queue_state", self._queues, self.library.lib.cl_engine_queues)

    def pauses(self) -> np.ndarray:
        """Return the pauses of every queue, struct cl_pause_state; 0 without shared buffers."""
        return self._read("cl_pause_state", self._queues, self.library.lib.cl_engine_pauses)

    def buffers(self) -> np.ndarray:
        """Return the state of every switch's buffer, struct cl_buffer_state."""
        return self._read("cl_buffer_state", self._switches, self.library.lib.cl_engine_buffers)

    def nics(self) -> np.ndarray:
        """Return the state of every NIC, struct cl_nic_state, in the order of `nic_ports`."""
        return self._read("cl_nic_state", len(self.nic_ports), self.library.lib.cl_engine_nics)

    def flows(self) -> np.ndarray:
        """Return the results of all flows so far, struct cl_flow_result."""
        return self._read("cl_flow_result", self._flows, self.library.lib.cl_engine_flows)

    def incidents(self) -> np.ndarray:
        """Return what the watchdog has found, struct cl_incident, the first 256."""
        lib, ffi = self.library.lib, self.library.ffi
        states = np.zeros(256, dtype=self.library.dtype("cl_incident"))
        pointer = ffi.from_buffer("struct cl_incident[]", states)
        return states[: lib.cl_engine_incidents(self._engine, pointer, len(states))]

    def counts(self) -> dict[str, int]:
        """Return the counters of the whole fabric, by the names of struct cl_counts."""
        counts = self.library.ffi.new("struct cl_counts *")
        self.library.lib.cl_engine_counts(self._engine, counts)
        return {name: int(getattr(counts, name)) for name, _ in self._fields("cl_counts")}

    def _fields(self, struct: str) -> list[tuple[str, Any]]:
        return list(self.library.ffi.typeof(f"struct {struct}").fields)

    def digest(self) -> int:
        """Return a number that differs if the state of any port, queue or flow does."""
        return int(self.library.lib.cl_engine_digest(self._engine))

    def set_thresholds(self, queues: Ints, kmin_bytes: Ints, kmax_bytes: Ints, max_p: Ints) -> None:
        """Set thresholds of queues, arrays (changes,); `max_p` is in units of 2^-32."""
        columns = [self._numbers("uint32_t", c) for c in (queues, kmin_bytes, kmax_bytes, max_p)]
        self._check(self.library.lib.cl_engine_set_thresholds(self._engine, len(queues), *columns))

    def set_parameters(self, ports: Ints, parameters: Ints, cnp_interval_ns: Ints) -> None:
        """Set the policy's parameters of NICs, by their ports.

        Shapes are (nics,), (nics, CL_PARAMETERS) and (nics,).
        """
        self._check(
            self.library.lib.cl_engine_set_parameters(
                self._engine,
                len(ports),
                self._numbers("uint32_t", ports),
                self._numbers("uint32_t", parameters),
                self._numbers("uint64_t", cnp_interval_ns),
            )
        )

    def parameters(self, ports: Ints) -> tuple[Ints, Ints]:
        """Return the parameters of NICs, (nics, CL_PARAMETERS), and their intervals of CNPs."""
        lib, ffi = self.library.lib, self.library.ffi
        values = np.zeros((len(ports), lib.CL_PARAMETERS), dtype=np.uint32)
        interval_ns = np.zeros(len(ports), dtype=np.uint64)
        self._check(
            lib.cl_engine_get_parameters(
                self._engine,
                len(ports),
                self._numbers("uint32_t", ports),
                ffi.from_buffer("uint32_t[]", values),
                ffi.from_buffer("uint64_t[]", interval_ns),
            )
        )
        return values.astype(np.int64), interval_ns.astype(np.int64)
