"""Shows packets to the choice of paths, in the kernel of a rack: run there, as root.

Standard input has a JSON object: `program`, `head` (hex: struct paths, before its tables),
`packets`, rows of [ns to wait, hex of the frame, place of its ECMP port, flow's key]. Standard
output has a row for each packet: [time, place of the port by which it leaves, whether it is
redirected, flowlets, reroutes, overflows].
"""

import ctypes
import json
import os
import socket
import struct
import sys
import time

from orchestration.agent.bpf.elf import Program
from orchestration.agent.bpf.load import LPM_TRIE, NO_PREALLOC, bpf, create_map, data_map, load
from orchestration.agent.linux.fib import Hop
from orchestration.agent.linux_switch.path_routes import KEY, ROUTE_INDEX, ProgramRoutes
from orchestration.agent.linux_switch.paths import HEAD, TABLES_AT

TEST_RUN, REDIRECT, NEXT = 10, 7, 0xFFFFFFFF
CONTEXT_BYTES, INGRESS_AT, IFINDEX_AT = 192, 36, 40
ENTRY = struct.Struct("=QII")


def shown(program, frame, ifindex):
    """Run the program once on a frame that came from elsewhere; return its verdict."""
    data = ctypes.create_string_buffer(frame, len(frame))
    context = ctypes.create_string_buffer(CONTEXT_BYTES)
    struct.pack_into("=II", context, INGRESS_AT, 1, ifindex)
    assert IFINDEX_AT == INGRESS_AT + 4
    where = ctypes.addressof(data), 0, 1, 0, CONTEXT_BYTES, 0, ctypes.addressof(context), 0
    head = struct.pack("=4I", program, 0, len(frame), 0)
    request = bytearray(head + struct.pack("=QQIIIIQQ", *where))
    bpf(TEST_RUN, request, "run")
    return struct.unpack_from("=I", request, 4)[0]


def main():
    asked = json.load(sys.stdin)
    # any interfaces will do: no packet of a test run is sent
    ports = sorted(index for index, name in socket.if_nameindex() if name.startswith("rack"))
    ports = ports[: asked["ports"]]
    program = Program.from_json(asked["program"])
    data, memory = data_map(program.data_bytes, b"paths")
    head = bytes.fromhex(asked["head"])
    memory[: len(head)] = head
    prefixes = create_map(LPM_TRIE, KEY.size, ROUTE_INDEX.size, 64, NO_PREALLOC, b"prefixes")
    hops = tuple(Hop(index, socket.AF_INET, bytes((10, 0, 0, 1)), 1, True) for index in ports)
    nowhere, all_ports = (bytes((10, 1, 0, 0)), 16), (bytes((10, 0, 0, 0)), 8)
    ProgramRoutes(memory, HEAD.size, prefixes).follow({nowhere: (), all_ports: hops})
    loaded = load(program.linked(data, {"prefixes": prefixes}), b"path_choice")
    entries = (program.data_bytes - TABLES_AT) // 24
    entries_at = TABLES_AT + 8 * entries
    rows = []
    for wait_ns, frame, own, key in asked["packets"]:
        if wait_ns:
            time.sleep(wait_ns / 1e9)
        verdict = shown(loaded, bytes.fromhex(frame), ports[own])
        assert verdict in (REDIRECT, NEXT), verdict
        t_ns, place = time.monotonic_ns(), own
        for way in range(4):
            at = entries_at + ((key ^ way) & (entries - 1)) * ENTRY.size
            found, ifindex, number = ENTRY.unpack_from(memory, at)
            if found == key:
                (t_ns,) = struct.unpack_from("=Q", memory, TABLES_AT + 8 * number)
                place = ports.index(ifindex)
        counts = HEAD.unpack_from(memory)[5:8]
        rows.append([t_ns, place, verdict == REDIRECT, *counts])
    json.dump(rows, sys.stdout)
    os.close(loaded)


main()
