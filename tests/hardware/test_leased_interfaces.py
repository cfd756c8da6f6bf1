"""Interfaces of this machine on a rack in real time: veths stand in for network cards."""

import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from inventory.files import load_testbed
from orchestration.agent.linux import ethtool
from orchestration.agent.safety.deadman_process import Process
from orchestration.bench import machine_state
from orchestration.bench.killed_racks import FOUR_DEVICES
from orchestration.core.errors import NotReadyError
from orchestration.virtual_rack import cleanup, interface_leases, interfaces
from orchestration.virtual_rack.control import up

pytestmark = [
    pytest.mark.root,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_machine"),
]
NEAR, FAR = "cltest0", "cltest1"
LLDP = 0x88CC


@pytest.fixture
def cards():
    """Two interfaces, as if a cable connected them, one with a state of its own."""
    ip = interfaces.run_command
    ip(["ip", "link", "add", NEAR, "type", "veth", "peer", "name", FAR])
    ip(["ip", "link", "set", "dev", NEAR, "mtu", "1400", "txqueuelen", "77", "alias", "my card"])
    ip(["ip", "link", "set", "dev", NEAR, "address", "02:aa:00:00:00:01", "promisc", "on"])
    ethtool.turn_off(NEAR, "tso")
    for setting, value in (("ipv4/conf", "rp_filter 2"), ("ipv6/conf", "accept_ra 0")):
        name, text = value.split()
        Path("/proc/sys/net", setting, NEAR, name).write_text(text)
    for name in (NEAR, FAR):
        ip(["ip", "link", "set", "dev", name, "up"])
    ip(["ip", "address", "add", "fe80::77/64", "dev", NEAR, "nodad"])
    end = time.monotonic() + 60
    while "tentative" in ip(["ip", "-j", "address", "show"]) and time.monotonic() < end:
        time.sleep(0.1)
    yield [interfaces.read_state(name) for name in (NEAR, FAR)]
    with suppress(RuntimeError):
        ip(["ip", "link", "del", NEAR])


def settled(wanted):
    """Return the interfaces' states as soon as they are as wanted, or after a while."""
    end = time.monotonic() + 60
    while True:
        try:
            found = [interfaces.read_state(state.name) for state in wanted]
        except (ValueError, OSError, RuntimeError) as error:  # one is away
            found = [error]
        if found == wanted or time.monotonic() > end:
            return found
        time.sleep(0.05)


@pytest.fixture
def testbed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "four.yml").write_text(FOUR_DEVICES)
    return load_testbed(str(tmp_path / "four.yml"))


def in_rack(rack, *argv):
    printed = io.BytesIO()
    code = rack.run(argv, stdout=printed, stderr=printed)
    return code, printed.getvalue().decode()


def test_two_cards_are_a_cable_of_the_rack_and_are_given_back(cards, testbed):
    words = (f"h1:eth0={NEAR}", f"leaf1:eth0={FAR}")
    before = machine_state.snapshot()
    rack, _ = up(testbed, clock="real", interfaces=words)
    try:
        assert not {NEAR, FAR} & {link["ifname"] for link in interfaces.links()}
        code, said = in_rack(rack, "ssh", "h1", "ip -j link show eth0; lldpctl -f keyvalue")
        assert code == 0, said
        assert '"mtu":1500' in said
        assert "02:aa:00:00:00:01" in said
        assert "lldp.eth0.chassis.name=leaf1" in said
        # what a rack may do to a card, and what it is refused while somebody has it
        change = "ip link set eth0 address 02:bb:00:00:00:01 promisc off txqueuelen 5"
        assert in_rack(rack, "ssh", "h1", change)[0] == 0
        _, again = up(testbed, clock="real", interfaces=words)
        assert not again
        with pytest.raises(NotReadyError, match=f"{NEAR} is leased to the rack") as refused:
            up(testbed, clock="real", interfaces=words[:1], folder=rack.folder.with_name("other"))
        assert "rack down" in refused.value.remedy
        kept = {row.name: row.in_use_by for row in cleanup.cleanup_items()}
        assert all(kept[name] for name in (NEAR, FAR, "four"))
    finally:
        rack.down()
    assert settled(cards) == cards
    assert machine_state.settled_differences(before) == []


def test_one_card_goes_to_what_is_outside(cards, testbed):
    outside = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(LLDP))
    outside.bind((FAR, LLDP))
    # its frames are multicast, which a card must be told to take
    outside.setsockopt(263, 1, machine_membership())
    outside.settimeout(40)
    rack, _ = up(testbed, clock="real", interfaces=(f"leaf1:eth0={NEAR}",))
    try:
        while b"leaf1" not in outside.recv(2000):
            pass
        _, said = in_rack(rack, "ssh", "h1", "cat /sys/class/net/eth0/carrier")
        assert said.strip() == "0"
    finally:
        outside.close()
        rack.down()
    assert settled(cards) == cards


def machine_membership():
    """Return struct packet_mreq for all multicast frames of the far card."""
    return struct.pack("=iHH8s", socket.if_nametoindex(FAR), 2, 0, b"")


def test_an_error_while_it_is_built_gives_leased_interfaces_back(cards, testbed, monkeypatch):
    monkeypatch.setattr(interface_leases, "require_free", lambda _: None)
    with pytest.raises(NotReadyError, match="nic9 cannot be moved to leaf1"):
        up(testbed, clock="real", interfaces=(f"h1:eth0={NEAR}", "leaf1:eth0=nic9"))
    assert settled(cards) == cards
    assert interface_leases.leases() == []


def test_refused_before_anything_is_made(cards, testbed, tmp_path):
    interfaces.run_command(["ip", "route", "add", "default", "dev", FAR])
    refused = {"nic9": "has no interface", FAR: "uplink", "lo": "loopback"}
    for name, why in refused.items():
        with pytest.raises(NotReadyError, match=why):
            up(testbed, clock="real", interfaces=(f"h1:eth0={name}",))
    interfaces.run_command(["ip", "address", "add", "192.0.2.77/32", "dev", NEAR])
    with pytest.raises(NotReadyError, match=r"has the address 192\.0\.2\.77/32"):
        up(testbed, clock="real", interfaces=(f"h1:eth0={NEAR}",))
    assert not (tmp_path / "state").exists()
    assert interface_leases.leases() == []


def reaper_of(rack):
    (pid,) = machine_state.find_processes("virtual_rack.reaper", str(rack.folder))
    return pid


def killed(*pids):
    processes = [Process.of(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    while any(process.lives for process in processes):
        time.sleep(0.02)


def closloop(*arguments):
    words = ["-c", "from orchestration.cli.main import main; main()", *arguments]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_killed_reaper_is_replaced_and_without_one_clean_returns_interfaces(cards, testbed):
    before = machine_state.snapshot()
    rack, _ = up(testbed, clock="real", interfaces=(f"h1:eth0={NEAR}", f"leaf1:eth0={FAR}"))
    first = reaper_of(rack)
    killed(first)
    end = time.monotonic() + 60
    while not machine_state.find_processes("virtual_rack.reaper", str(rack.folder)):
        assert time.monotonic() < end
        time.sleep(0.05)
    # all at once: nobody is left to give anything back
    second = reaper_of(rack)
    os.kill(second, signal.SIGSTOP)
    killed(rack.status()["pid"], second)
    with pytest.raises(NotReadyError, match="closloop clean"):
        up(testbed, clock="real", interfaces=(f"h1:eth0={NEAR}",))
    would = closloop("clean", "--dry-run", "--json")
    assert {(row["kind"], row["name"]) for row in would} >= {
        ("interface", NEAR), ("interface", FAR), ("rack", "four")
    }  # fmt: skip
    assert {row["done"] for row in would} == {"would be given back", "would be removed"}
    done = closloop("clean", "--json")
    assert {row["done"] for row in done} == {"given back", "removed"}
    assert closloop("clean", "--json") == []
    assert settled(cards) == cards
    assert machine_state.settled_differences(before) == []


@pytest.fixture
def namespace(tmp_path):
    """A network namespace, as a device's, with the process that has it."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "60"])
    own = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
        time.sleep(0.01)
    yield Path(f"/proc/{holder.pid}/ns/net")
    holder.kill()
    holder.wait()


def test_a_card_that_the_kernel_has_brought_back_is_found_by_its_mark(cards, namespace, tmp_path):
    # what default_device_exit_net does to a card when its namespace ends
    interface_leases.take_lease(NEAR, "h1", "eth0", tmp_path, Process(1, ""), namespace)
    (lease,) = interface_leases.leases()
    interfaces.move("eth0", Path(f"/proc/{os.getpid()}/ns/net"), "dev7", lease.namespace)
    interface_leases.unmount(str(lease.namespace))
    assert not lease.rack_alive
    assert interface_leases.return_interface(lease)
    assert settled(cards) == cards
    # again, as after a kill between two steps
    assert interface_leases.return_interface(lease) == "it had been given back"


def test_a_lease_of_an_earlier_boot_has_nothing_to_put_back(cards, namespace, tmp_path):
    interface_leases.take_lease(NEAR, "h1", "eth0", tmp_path, Process(1, ""), namespace)
    (lease,) = interface_leases.leases()
    assert (
        interface_leases.return_interface(replace(lease, boot="another"))
        == "the machine has booted since"
    )
    assert interface_leases.leases() == []
