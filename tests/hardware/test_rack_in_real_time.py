"""A rack of namespaces of this machine: devices over SSH, marked flows, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from collectors.bpf.compile import DCTCP, compiled
from orchestration.agent.bpf.congestion import OLDEST, Control, read_control, registered
from orchestration.agent.bpf.load import kernel_release
from orchestration.backends.common.linux import new_program_name
from orchestration.bench.rack import closloop
from orchestration.core.errors import NotReadyError
from orchestration.virtual_rack.control import find_rack, up

sys.path.insert(0, str(Path(__file__).parent))

from machine_state import family, gone, machine
from real_rack import (
    FOUR,
    facts_of_a_campaign,
    first_process,
    in_rack,
    provisioned,
)
from watched_flows import FLOWS, WATCHER, seen_in

pytestmark = [
    pytest.mark.root,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("own_machine"),
]

# Runs in the rack, as the controller: a flow through queues that mark, read over SSH.
FLOW = """
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from inventory.ansible import load_rack
from orchestration.backends.hardware.switches import make_switch
from orchestration.device.client import AgentClient

rack = load_rack(Path(sys.argv[1]))
target = rack.addresses.nics[rack.testbed.ports_of["h2"][0].index]
switch = make_switch(rack, "leaf1")
agent = AgentClient(rack.access["leaf1"], rack.known_hosts_file, switch.services)


def asked(request):
    return switch.reading(agent.call(request[0], **request[1]))


def flow():
    take = (
        "import socket; s = socket.create_server(('', 7000)); print('ready', flush=True); "
        "c = s.accept()[0]; n = 0\\nwhile d := c.recv(1 << 16): n += len(d)\\nprint(n)"
    )
    send = f"import socket; socket.create_connection(('{target}', 7000)).sendall(bytes(2_000_000))"
    receiver = subprocess.Popen(
        ["ssh", "h2", "python3", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    receiver.stdin.write(take)
    receiver.stdin.close()
    assert receiver.stdout.readline() == "ready\\n"
    subprocess.run(["ssh", "h1", "python3", "-"], input=send, text=True, check=True)
    assert receiver.stdout.readline() == "2000000\\n"
    assert receiver.wait() == 0


opened = asked(switch.open_request())
queues = [queue for queue in rack.testbed.queues if queue.device == switch.device]
uplink = int(np.argmax([rack.testbed.peer_device(queue.port).tier for queue in queues]))
assert (opened.kmin_bytes == 1_000_000).all() and (opened.marked_packets == 0).all()
flow()
unmarked = asked(switch.read_request())
assert unmarked.marked_packets[uplink] == 0, unmarked
assert unmarked.tx_bytes[uplink] > 2_000_000, unmarked

places = np.arange(len(opened.kmin_bytes))
low, high = np.full(len(places), 3000), np.full(len(places), 9000)
after = asked(switch.set_request(places, low, high, np.full(len(places), 0.5)))
assert after.kmin_bytes.tolist() == low.tolist() and after.kmax_bytes.tolist() == high.tolist()
assert np.allclose(after.pmax, 0.5, atol=1e-3)
flow()
marked = asked(switch.read_request())
packets = marked.tx_packets[uplink] - unmarked.tx_packets[uplink]
assert 0 < marked.marked_packets[uplink] < packets, (marked, packets)
agent.close()
"""


@pytest.fixture(scope="module")
def prepared(machine_before, four_devices, tmp_path_factory):
    """A provisioned rack, with its folder's parent."""
    folder = tmp_path_factory.mktemp("real")
    with provisioned(four_devices, folder, machine_before) as rack:
        yield rack, folder


def test_a_rack_is_up_once_with_one_clock(prepared, four_devices):
    rack, folder = prepared
    assert rack.layout.clock == "real"
    _, started_here = up(four_devices, clock="real", folder=rack.folder)
    assert not started_here
    with pytest.raises(NotReadyError, match="other devices"):
        up(four_devices, folder=rack.folder)
    began = time.monotonic()
    rack.let_pass(0.5)
    assert time.monotonic() - began >= 0.5
    code, text = closloop(rack, folder, "inventory", "check", str(rack.inventory))
    assert code == 0, text


@pytest.mark.skipif(kernel_release() < OLDEST, reason="the kernel is older than Linux 6.4")
def test_a_control_that_another_program_registers_is_not_of_a_device(prepared):
    rack, _ = prepared
    state = rack.dump("h1")
    control = Control(read_control(compiled(DCTCP).read_bytes()), new_program_name())
    try:
        assert rack.dump("h1") == state
    finally:
        control.close()


def test_devices_know_their_neighbours_and_cannot_touch_the_machine(
    prepared, machine_before, four_devices
):
    rack, _ = prepared
    assert in_rack(rack, "ssh", "h1", "hostname") == (0, "h1\n")
    code, said = in_rack(rack, "ssh", "leaf1", "lldpctl -f keyvalue | grep chassis.name")
    assert code == 0, said
    assert "chassis.name=h1" in said, said
    assert "chassis.name=spine1" in said, said
    for path in ("/proc/sys/vm/overcommit_memory", "/sys/class/net/x"):
        code, said = in_rack(rack, "ssh", "h1", f"echo 1 > {path}")
        assert code != 0, path
        assert "Read-only" in said, said
    code, said = in_rack(rack, "ssh", "h1", "ls /dev; ps -e | wc -l")
    assert "vda" not in said, said
    assert int(said.split()[-1]) < 20, said
    assert machine() == machine_before
    assert len(family(rack.status()["pid"])) > 3 * len(four_devices.devices)


def test_flows_are_marked_by_thresholds_that_are_set_and_read_over_ssh(prepared):
    rack, folder = prepared
    (folder / "flow.py").write_text(FLOW)
    state = rack.dump("leaf1")
    code, text = in_rack(rack, sys.executable, str(folder / "flow.py"), str(rack.inventory))
    assert code == 0, text
    # a program was the agent's, and went with it
    assert rack.dump("leaf1") == state


@pytest.mark.parametrize("control", ["reno", "dctcp"])
def test_a_campaign_runs_and_puts_everything_back(prepared, four_devices, control):
    rack, folder = prepared
    names = [device.name for device in four_devices.devices]
    states = {name: rack.dump(name) for name in names}
    known = registered()
    facts = facts_of_a_campaign(rack, folder, control)
    marks = facts["sources"]["leaf1"]["marked_packets"]
    assert marks.startswith("a BPF program" if "red" in rack.layout.lacks else "Linux RED")
    assert facts["offloads_on"] == []
    if control == "dctcp" and "dctcp" in rack.layout.lacks:
        said = facts["congestion_control"]["dctcp"]
        assert (said["by"], said["hosts"]) == ("a BPF program", list(four_devices.hosts))
        # the hosts have one kernel: one of them registered it for all
        (totals,) = said["totals"].values()
        assert totals["connections"] > 0
        assert totals["marked_windows"] > 0
        assert 0 < totals["mean_alpha"] <= 1
    else:
        assert "congestion_control" not in facts
    assert {name: rack.dump(name) for name in names} == states
    assert registered() == known


def test_switches_keep_flow_tables_for_a_tuner_that_looks_at_flows(prepared, four_devices):
    rack, folder = prepared
    states = {device.name: rack.dump(device.name) for device in four_devices.devices}
    (folder / "watcher.py").write_text(WATCHER)
    (folder / "flows.yml").write_text(FLOWS.format(folder=folder, control="reno", where="hardware"))
    code, text = closloop(
        rack, folder, "run", str(folder / "flows.yml"), "-i", str(rack.inventory), "--json"
    )
    assert code in (0, 1), text
    (trial,) = (folder / "runs" / "flows").glob("*/trial.json")
    facts = json.loads(trial.read_text())["facts"]["flow_table"]
    assert facts["packets_not_counted"] == facts["flows_of_others"] == 0
    # two flows and their ways back, of which the latter send no data
    assert facts["most_entries_used"] == 2
    seen = seen_in(folder)
    # leaf1's uplink, the spine's port to leaf2, and leaf2's to h2
    away = [
        number
        for number, queue in enumerate(four_devices.queues)
        if queue.device != "leaf1" or four_devices.peer_device(queue.port).name != "h1"
    ]
    on_the_way = {name: set() for name in seen[0]}
    for row in seen:
        for name, values in row.items():
            busy = tuple(number for number, value in enumerate(values) if value)
            on_the_way[name].add((busy, max(values)))
            assert set(busy) <= set(away)
    whole = max(busy for busy, _ in on_the_way["incast_degree"])
    assert len(whole) == 3, on_the_way
    # both are mice at first; then the small one ends, and the large one has sent 1 MB
    assert (whole, 2) in on_the_way["mice_flows"], on_the_way
    assert (whole, 1) in on_the_way["elephant_flows"], on_the_way
    # both flows are of one sender
    assert {degree for _, degree in on_the_way["incast_degree"]} <= {0, 1}
    assert {name: rack.dump(name) for name in states} == states


@pytest.mark.parametrize("victim", ["its first process", "its supervisor", "all that boots"])
def test_a_sigkill_leaves_the_machine_as_it_was(machine_before, four_devices, tmp_path, victim):
    folder = tmp_path / "rack"
    if victim == "all that boots":
        source = (
            "import sys; from pathlib import Path; from inventory.files import load_testbed; "
            "from orchestration.virtual_rack.control import up; "
            "up(load_testbed(sys.argv[1]), clock='real', folder=Path(sys.argv[2]))"
        )
        (tmp_path / "four.yml").write_text(FOUR)
        argv = [sys.executable, "-c", source, str(tmp_path / "four.yml"), str(folder)]
        # this process, the supervisor, unshare, and then the first process and the devices
        for members in (2, 4, 6, 9):
            booting = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            processes = set()
            while len(processes) < members and booting.poll() is None:
                processes = family(booting.pid)
            assert booting.poll() is None
            for pid, _ in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            booting.wait()
            gone(processes)
    else:
        rack, _ = up(four_devices, clock="real", folder=folder)
        status = rack.status()
        processes = family(status["pid"])
        first = first_process(status)
        os.kill(first if victim == "its first process" else status["pid"], signal.SIGKILL)
        gone(processes)
        with pytest.raises(NotReadyError, match="not up"):
            find_rack(folder)
    assert machine() == machine_before
    # what it left in its folder is replaced
    rack, _ = up(four_devices, clock="real", folder=folder)
    rack.down()
