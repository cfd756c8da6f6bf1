"""Lets leaf1 of a virtual rack choose paths, agent by hand: run in the rack's first namespace.

Arguments: the inventory. Prints as JSON by step how many of a flow's datagrams left by each uplink.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from inventory.addressing import rack_addresses
from inventory.ansible import load_rack
from orchestration.backends.hardware.switch_programs import SETTINGS, _path_program
from orchestration.core.load_balancing import LoadBalancingSpec
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError

DATAGRAMS = 200
SEND = (
    "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
    "s.bind(('', 7000));"
    "[(s.sendto(bytes(64), ('{}', 9)), time.sleep({})) for _ in range({})]"
)
LINKED = (
    "import sys; sys.path.insert(0, '{}'); import socket; from orchestration.agent.bpf import tcx;"
    "print([len(tcx.linked(socket.if_nametoindex(name))) for name in ('eth2', 'eth3')])"
)


def on(device, command):
    done = subprocess.run(
        ["ssh", "-o", "BatchMode=yes", device, command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (device, command, done.stderr)
    return done.stdout


def python(device, program):
    return on(device, f'python3 -c "{program}"')


def main(inventory):
    rack = load_rack(Path(inventory))
    addresses = rack_addresses(rack.testbed)
    h3 = addresses.nics[rack.testbed.ports_of["h3"][0].index]
    root = Path(__file__).resolve().parents[2]
    result = {}
    # as a trial does it
    for name in SETTINGS:
        on("leaf1", f"sysctl -w {name}=1")

    def sent():
        lines = (line.split() for line in on("leaf1", "cat /proc/net/dev").splitlines())
        found = {words[0]: int(words[10]) for words in lines if words[0].endswith(":")}
        return [found["eth2:"], found["eth3:"]]

    def step(name, gap_s=0.0001):
        before = sent()
        python("h1", SEND.format(h3, gap_s, DATAGRAMS))
        result[name] = [now - then for now, then in zip(sent(), before, strict=True)]

    def linked():
        return json.loads(python("leaf1", LINKED.format(root)))

    def agent():
        return AgentClient(rack.access["leaf1"], rack.known_hosts_file, ["paths"], None)

    def begin(client, spray, timeout_ns):
        program = _path_program(rack, "leaf1", LoadBalancingSpec(entries=64))
        return client.call(
            "paths.begin",
            **program,
            stream=7,
            timeout_ns=timeout_ns,
            route_by="random",
            spray=spray,
        )

    step("ecmp")
    client = agent()
    result["choices"] = begin(client, True, 10**9)
    result["linked"] = linked()
    step("spray")
    result["spray counts"] = client.call("paths.read")
    client.call("paths.end")
    result["linked after end"] = linked()
    step("after end")

    begin(client, False, 10**9)
    step("long timeout")
    result["long counts"] = client.call("paths.read")
    client.call("paths.set", timeout_ns=1_000)
    step("short timeout")
    result["short counts"] = client.call("paths.read")
    client.call("paths.set", timeout_ns=10**9)
    step("where it is")
    loaded = result["where it is"]
    spine = "spine1" if loaded[0] > loaded[1] else "spine2"
    on(spine, "ip link set eth0 down")
    time.sleep(2)  # a carrier is noticed within a second
    step("its link down")
    result["down counts"] = client.call("paths.read")
    on(spine, "ip link set eth0 up")
    time.sleep(2)

    on("leaf1", f"kill -9 {client.about['pid']}")
    try:
        client.call("paths.read")
        result["killed"] = "it answers"
    except DeviceError as error:
        result["killed"] = error.what
    result["linked after kill"] = linked()
    step("after kill")
    for name in SETTINGS:
        on("leaf1", f"sysctl -w {name}=0")
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
