"""The virtual rack itself: its devices, its cables, its time, and what can befall it."""

import io
import json
import os
import pty
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from inventory.addressing import rack_addresses
from inventory.ansible import load_rack
from inventory.cabling import fabric_addresses
from inventory.routing import PathTable
from orchestration.bench.rack import closloop
from orchestration.core.errors import NotReadyError
from orchestration.virtual_rack.control import find_rack, is_up, up
from orchestration.virtual_rack.folder import RackFolder

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.redis,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).resolve().parents[2]

# Runs on a device: what provisioning does, as far as packets are to find their way.
ROUTE = """
import json, socket
from inventory.addressing import rack_addresses
from orchestration.virtual_rack.cabling import set_up_switch
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.isolation import LAYOUT_FILE
from orchestration.backends.emulated.system import run_batch

layout, name = Layout.from_json(json.load(open(LAYOUT_FILE))), socket.gethostname()
testbed = layout.testbed
if name in testbed.hosts:
    port = testbed.ports_of[name][0]
    addresses = rack_addresses(testbed)
    address = addresses.nics[port.index]
    router = addresses.routers[testbed.peer_device(port).name]
    run_batch("ip", [f"address add {address}/32 dev eth0"] + [
        f"route add {block} via {router} dev eth0 onlink src {address}"
        for block in addresses.blocks.values()
    ])
elif name not in layout.sonic:
    set_up_switch(layout, name)
"""

# Prints the round trip times of pings in ns.
PING = """
import socket, struct, sys, time
line = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
line.settimeout(1)
for number in range(4):
    head = struct.pack("!BBHHH", 8, 0, 0, 7, number)
    total = sum(struct.unpack("!4H", head))
    head = head[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[4:]
    begin = time.monotonic_ns()
    line.sendto(head, (sys.argv[1], 0))
    while line.recv(2000)[20] != 0:
        pass
    print(time.monotonic_ns() - begin)
"""


def devices(rack):
    return [device.name for device in rack.layout.testbed.devices]


def uptime_s(in_rack):
    return float(in_rack("cat", "/proc/uptime")[1].split()[0])


def test_devices_are_reached_by_ssh_and_know_their_neighbours(virtual_rack, on_device):
    layout = virtual_rack.layout
    for name in devices(virtual_rack):
        sudo = "sudo -n " if name in layout.sonic else ""
        code, text = on_device(name, f"hostname && {sudo}/usr/sbin/lldpctl -f json0")
        assert code == 0, text
        hostname, _, told = text.partition("\n")
        assert hostname == name
        found = {}
        for entry in json.loads(told)["lldp"][0]["interface"]:
            peer = entry["chassis"][0]["name"][0]["value"], entry["port"][0]["id"][0]["value"]
            found[entry["name"]] = peer
        ports = layout.testbed.ports
        assert found == {
            layout.interface(port): (ports[port.peer].device, layout.interface(ports[port.peer]))
            for port in layout.testbed.ports_of[name]
        }


def test_its_inventory_is_the_rack(virtual_rack):
    rack = load_rack(virtual_rack.inventory)
    layout = virtual_rack.layout
    assert rack.testbed == replace(layout.testbed, description=rack.testbed.description)
    assert rack.access["spine2"].platform == "sonic"
    assert rack.access["spine2"].interfaces == ("Ethernet0", "Ethernet4")
    assert rack.access["h1"].nic == "roce"
    assert rack.access["h1"].rdma_devices == ("rxe-h1",)
    assert all(a.shape for name, a in rack.access.items() if name != "spine2")
    assert [find_rack(virtual_rack.folder).name, virtual_rack.name] == ["lab", "lab"]


@pytest.fixture(scope="module")
def routed(virtual_rack):
    """Hosts with their fabric addresses, and routes through spine1."""
    python = f"PYTHONPATH={os.pathsep.join(p for p in sys.path if p)}:{ROOT} {sys.executable}"
    for name in devices(virtual_rack):
        if name != "spine2":
            printed = io.BytesIO()
            command = ["ssh", "-o", "BatchMode=yes", name, f"{python} -P -c '{ROUTE}'"]
            code = virtual_rack.run(command, stdout=printed, stderr=printed)
            assert code == 0, printed.getvalue()


def test_idle_paths_have_the_testbeds_base_rtt(virtual_rack, routed, on_device):
    testbed = virtual_rack.layout.testbed
    paths, addresses = PathTable(testbed), rack_addresses(testbed).nics
    for host in testbed.hosts[1:]:
        address = addresses[testbed.ports_of[host][0].index]
        code, text = on_device("h1", f"python3 -c '{PING}' {address}")
        assert code == 0, text
        # the first one asks for MAC addresses, the clock is read in steps of some ns
        for rtt_ns in list(map(int, text.split()))[1:]:
            assert 0 <= rtt_ns - paths.base_rtt_ns("h1", host) < 100


def test_a_command_in_the_rack_is_as_one_outside(virtual_rack, in_rack, tmp_path):
    assert in_rack("sh", "-c", "echo out; echo err >&2; exit 7", cwd=tmp_path)[0] == 7
    out, err = io.BytesIO(), io.BytesIO()
    virtual_rack.run(["sh", "-c", "echo out; echo err >&2"], stdout=out, stderr=err)
    assert (out.getvalue(), err.getvalue()) == (b"out\n", b"err\n")
    assert in_rack("sh", "-c", "pwd > here; echo $COLOUR", cwd=tmp_path, env={"COLOUR": "red"}) == (
        0,
        "red\n",
    )
    assert (tmp_path / "here").read_text() == f"{tmp_path}\n"
    (tmp_path / "here").write_text("changed outside\n")
    assert in_rack("cat", "here", cwd=tmp_path) == (0, "changed outside\n")
    assert in_rack("no-such-program")[0] == 127
    assert in_rack("true", cwd=tmp_path / "nowhere")[0] == 126
    assert in_rack("sh", "-c", "echo $HOME; hostname") == (0, "/run/home\ncontroller\n")
    big = io.BytesIO()
    assert virtual_rack.run(["head", "-c", "2000000", "/dev/zero"], stdout=big) == 0
    assert len(big.getvalue()) == 2_000_000
    # what a program leaves behind does not keep its caller
    assert in_rack("sh", "-c", "sleep 1000000 & echo left") == (0, "left\n")


def on_terminal(rack, program, keys):
    """Run `closloop rack exec` on a terminal of 41 rows; press `keys` when it asks; return both."""
    pid, terminal = pty.fork()
    if pid == 0:
        words = ["-m", "orchestration.cli.main"]
        code = "from orchestration.cli.main import main; main()"
        argv = [sys.executable, "-c", code, *words[2:], "rack", "exec", "--rack", str(rack.folder)]
        os.execve(sys.executable, [*argv, "--", "sh", "-c", program], {**os.environ, "LINES": "41"})
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 101, 0, 0))
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        shown += piece
        if not piece:
            break
        if b"ready" in shown and keys:
            os.write(terminal, keys)
            keys = b""
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_a_terminal_is_handed_through(virtual_rack):
    code, shown = on_terminal(virtual_rack, "echo ready; read x; echo got-$x; exit 5", b"hello\r")
    assert code == 5
    assert "got-hello" in shown
    code, shown = on_terminal(virtual_rack, "echo ready; sleep 1000000000", b"\x03")
    assert code == 130


def test_time_stands_still_between_commands(virtual_rack, in_rack):
    before = uptime_s(in_rack)
    time.sleep(0.5)
    assert uptime_s(in_rack) - before < 0.05
    virtual_rack.let_pass(100)
    assert 100 <= uptime_s(in_rack) - before < 101
    assert virtual_rack.status()["busy"] == 0


def test_a_killed_controller_leaves_a_rack_that_goes_on(virtual_rack, in_rack):
    for _ in range(5):
        program = ["ssh", "leaf1", "while :; do sleep 0.001; done"]
        process = virtual_rack.start(program, stdout=io.BytesIO(), stderr=io.BytesIO())
        process.kill(signal.SIGKILL)
        assert process.wait() == 128 + signal.SIGKILL
    assert in_rack("true")[0] == 0
    # a caller that goes away takes its program with it
    process = virtual_rack.start(["sleep", "1000000000"], stdout=io.BytesIO())
    process.connection.close()
    deadline = time.monotonic() + 60
    while virtual_rack.status()["busy"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert virtual_rack.status()["busy"] == 0


def test_devices_write_nothing_to_the_machine(virtual_rack, on_device):
    name = f"closloop-test-{os.getpid()}"
    # a source tree below /tmp is the machine's own there, for devices have a /tmp of their own
    own = [] if ROOT.is_relative_to("/tmp") else [str(ROOT)]
    for folder in ("/etc", "/usr", "/tmp", "/var/tmp", *own):
        assert on_device("h1", f"echo x > {folder}/{name} && ls {folder}/{name}")[0] == 0
        assert not Path(folder, name).exists()
        assert on_device("h2", f"ls {folder}/{name}")[0] != 0
    assert on_device("h1", f"rm -f /etc/{name} /usr/{name} /var/tmp/{name} {ROOT}/{name}")[0] == 0


def test_a_dump_has_every_change_and_no_other(virtual_rack, on_device):
    before = virtual_rack.dump("leaf2")
    assert virtual_rack.dump("leaf2") == before
    changes = {
        "ip route add 10.9.0.0/16 dev eth0": "ip route del 10.9.0.0/16 dev eth0",
        "echo x > /etc/closloop-test": "rm /etc/closloop-test",
        "sysctl -w net.ipv4.tcp_retries2=9": "sysctl -w net.ipv4.tcp_retries2=15",
        "tc qdisc add dev mgmt root pfifo limit 100": "tc qdisc del dev mgmt root",
        "ip neigh add 10.9.9.9 lladdr 02:00:00:00:00:99 dev eth0": "ip neigh del 10.9.9.9 dev eth0",
    }
    for change, undo in changes.items():
        assert on_device("leaf2", change)[0] == 0, change
        assert virtual_rack.dump("leaf2") != before, change
        assert on_device("leaf2", undo)[0] == 0, undo
        assert virtual_rack.dump("leaf2") == before, undo
    redis = "redis-cli -s /var/run/redis/redis.sock -n 4"
    before = virtual_rack.dump("spine2")
    row = "'WRED_PROFILE|TEST'"
    assert on_device("spine2", f"{redis} hset {row} ecn ecn_all")[0] == 0
    assert "WRED_PROFILE|TEST" in virtual_rack.dump("spine2")
    assert on_device("spine2", f"{redis} del {row}")[0] == 0
    assert virtual_rack.dump("spine2") == before


def test_users_of_a_sonic_switch(on_device):
    assert on_device("spine2", "id -un; redis-cli -s /var/run/redis/redis.sock ping") == (
        0,
        "admin\nPONG\n",
    )
    assert on_device("spine2", "sudo -n id -u") == (0, "0\n")
    code, text = on_device("spine2", "sudo -n id -u", user="operator")
    assert code != 0
    assert "password is required" in text


def test_roce_hosts_have_an_rdma_device_of_their_own(on_device):
    assert "link rxe-h1/1 state ACTIVE" in on_device("h1", "rdma link")[1]
    assert on_device("h1", "ls /sys/class/infiniband")[1] == "rxe-h1\n"
    assert on_device("h3", "rdma link") == (0, "")


def test_a_fresh_rack_is_proven_by_the_inventory_check(virtual_rack, tmp_path):
    inventory = str(virtual_rack.inventory)
    code, text = closloop(virtual_rack, tmp_path, "inventory", "check", inventory, "--json")
    assert code == 0, text


def test_the_inventory_check_names_hosts_that_do_not_reach_each_other(
    virtual_rack, routed, on_device, tmp_path
):
    def fabric():
        words = ("inventory", "check", str(virtual_rack.inventory), "--json")
        code, text = closloop(virtual_rack, tmp_path, *words)
        told = json.loads(text)
        assert code == (3 if told["findings"] else 0)
        return {name: row["fabric"] for name, row in told["devices"].items()}, told["findings"]

    states, findings = fabric()
    assert findings == []
    assert states == {
        name: "ok" if name.startswith("h") else "unknown" for name in devices(virtual_rack)
    }
    addresses = fabric_addresses(load_rack(virtual_rack.inventory))
    (h1,), (h3,) = addresses["h1"], addresses["h3"]
    assert on_device("h3", f"ip route add blackhole {h1}/32")[0] == 0
    states, findings = fabric()
    assert on_device("h3", f"ip route del blackhole {h1}/32")[0] == 0
    assert [(f["device"], f["check"], f["severity"]) for f in findings] == [
        ("h1", "fabric", "wrong"), ("h3", "fabric", "wrong"),
    ]  # fmt: skip
    assert f"from {h1} it does not reach h3 at {h3} (no answer)" in findings[0]["what"]
    assert f"from {h3} it does not reach h1 at {h1}" in findings[1]["what"]


def test_what_befalls_a_device(virtual_rack, on_device):
    before = {name: virtual_rack.dump(name) for name in ("leaf1", "spine2")}
    rack = virtual_rack

    rack.inject("leaf1", "vanish")
    assert on_device("leaf1", "true")[0] == 255
    assert on_device("leaf2", "true")[0] == 0
    rack.inject("leaf1", "return")
    assert on_device("leaf1", "true")[0] == 0

    rack.inject("leaf1", "port down", "eth0")
    assert "DOWN" in on_device("leaf1", "ip -br link show eth0")[1]
    assert "NO-CARRIER" in on_device("h1", "ip -br link show eth0")[1]
    rack.inject("leaf1", "port up", "eth0")
    assert "LOWER_UP" in on_device("leaf1", "ip -br link show eth0")[1]

    rack.inject("leaf1", "disk full")
    for folder in ("/etc", "/tmp", "/run"):
        assert "No space left" in on_device("leaf1", f"head -c 9999 /dev/zero > {folder}/y")[1]
    rack.inject("leaf1", "disk free")
    assert on_device("leaf1", "rm -f /etc/y /tmp/y /run/y; echo x > /etc/y; rm /etc/y")[0] == 0

    rack.inject("spine2", "redis restart")
    rack.let_pass(1)
    ready = "redis-cli -s /var/run/redis/redis.sock exists PORT_TABLE:PortInitDone"
    assert on_device("spine2", ready) == (0, "1\n")

    agent = "python3 -c 'import time; time.sleep(1e9) # closloop-agent'"
    process = rack.start(["ssh", "leaf1", agent], stdout=io.BytesIO(), stderr=io.BytesIO())
    while rack.inject("leaf1", "kill agent") == 0:
        time.sleep(0.05)
    assert process.wait() != 0
    assert rack.inject("leaf1", "kill agent") == 0

    with pytest.raises(NotReadyError, match="there is no event 'flood'; events are vanish"):
        rack.inject("leaf1", "flood")
    with pytest.raises(NotReadyError, match="no device 'leaf9'"):
        rack.inject("leaf9", "vanish")
    after = {name: rack.dump(name) for name in before}
    assert after["spine2"] == before["spine2"]
    assert _without_routes(after["leaf1"]) == _without_routes(before["leaf1"])


def test_what_a_reboot_takes_and_what_it_leaves(virtual_rack, on_device):
    rack = virtual_rack
    # without what earlier tests have set up on it
    rack.inject("leaf1", "reboot cold")
    before = {name: rack.dump(name) for name in ("leaf1", "spine2")}

    def boot_id(device):
        return on_device(device, "cat /proc/sys/kernel/random/boot_id")[1]

    boots = {boot_id(device) for device in ("leaf1", "spine2", "h1")}
    assert len(boots) == 3

    changes = (
        "set -e; echo x > /etc/closloop-test && sysctl -w net.ipv4.ip_forward=1"
        " && ip address add 10.9.9.9/32 dev lo && ip link set eth0 mtu 9000"
        " && ip route add 10.9.0.0/16 dev eth0 && ip rule add from 10.9.9.9 priority 4101 table 99"
        " && tc qdisc add dev eth0 root handle 3: red limit 900000 min 50000 max 200000 avpkt 1000"
        " && touch /run/closloop-test\n setsid sleep 1000000 < /dev/null > /dev/null 2>&1 & exit 0"
    )
    assert on_device("leaf1", changes)[0] == 0
    assert rack.dump("leaf1") != before["leaf1"]
    rack.inject("leaf1", "reboot cold")
    assert boot_id("leaf1") not in boots
    assert on_device("leaf1", "pgrep -x sleep || test -e /run/closloop-test")[0] == 1
    # the disk stays
    assert on_device("leaf1", "rm /etc/closloop-test")[0] == 0
    assert rack.dump("leaf1") == before["leaf1"]
    with pytest.raises(NotReadyError, match="only SONiC switches have warm reboots"):
        rack.inject("leaf1", "reboot warm")

    redis = "redis-cli -s /var/run/redis/redis.sock -n 4"

    def row():
        return on_device("spine2", f"{redis} hget 'WRED_PROFILE|TEST' ecn")[1].strip()

    assert on_device("spine2", f"{redis} hset 'WRED_PROFILE|TEST' ecn ecn_all")[0] == 0
    rack.inject("spine2", "reboot warm")
    assert boot_id("spine2") not in boots
    assert row() == "ecn_all"
    rack.inject("spine2", "reboot cold")
    assert row() == ""
    assert rack.dump("spine2") == before["spine2"]
    assert on_device("spine2", f"{redis} hset 'WRED_PROFILE|TEST' ecn ecn_all")[0] == 0
    rack.inject("spine2", "config save")
    rack.inject("spine2", "reboot cold")
    assert row() == "ecn_all"
    assert on_device("spine2", f"{redis} del 'WRED_PROFILE|TEST'")[0] == 0
    rack.inject("spine2", "config save")
    assert rack.dump("spine2") == before["spine2"]


# Runs in the rack: two users with an account each, and root, want one switch.
TWO_ACCOUNTS = """
import sys
from dataclasses import replace
from pathlib import Path

from inventory.ansible import load_rack
from orchestration.device.client import AgentClient
from orchestration.device.errors import DeviceError

rack = load_rack(Path(sys.argv[1]))
access = rack.access["spine2"]
agents = [
    AgentClient(replace(access, user=user, become=become), rack.known_hosts_file, ["lease"])
    for user, become in (("admin", False), ("operator", False), ("admin", True))
]
print(*(agent.about["uid"] for agent in agents))
for round_ in range(3):
    for number, agent in enumerate(agents):
        words = {"holder": "ann@laptop", "ttl_s": 60}
        agent.call("lease.take", nonce=f"{number}" * 32, **words)
        for other, rival in enumerate(agents):
            if other != number:
                try:
                    rival.call("lease.take", nonce=f"{other}" * 32, **words)
                    sys.exit("two hold it")
                except DeviceError as error:
                    print(error.what.partition(" since")[0])
        agent.call("lease.drop", nonce=f"{number}" * 32)
"""


def test_two_accounts_of_a_device_cannot_hold_it_at_once(virtual_rack, in_rack, on_device):
    words = [sys.executable, "-c", TWO_ACCOUNTS, str(virtual_rack.inventory)]
    code, text = in_rack(*words)
    assert code == 0, text
    said = text.splitlines()
    assert said[0] == "1000 1001 0"
    held = "is held by ann@laptop (account {})"
    names = ("admin", "operator", "root")
    assert said[1:] == [held.format(name) for name in names for _ in range(2)] * 3
    assert on_device("spine2", "ls /var/tmp/closloop")[0] != 0


def _without_routes(dump):
    """A port that goes down takes its routes with it."""
    return {key: value for key, value in json.loads(dump).items() if key != "routes"}


def test_up_again_is_the_same_rack_or_refused(virtual_rack):
    testbed = virtual_rack.layout.testbed
    again = {"sonic": ("spine2",), "roce": ("h1", "h2"), "folder": virtual_rack.folder}
    rack, started = up(testbed, **again)
    assert (rack.inventory, started) == (virtual_rack.inventory, False)
    with pytest.raises(NotReadyError, match="is up with other devices"):
        up(testbed, folder=virtual_rack.folder)


def test_the_guest_dies_with_its_supervisor_and_leaves_nothing(virtual_rack, tmp_path):
    testbed = virtual_rack.layout.testbed
    place = tmp_path / ("deep" * 40) / "rack"  # longer than a socket's name may be
    rack, started = up(testbed, folder=place)
    assert started
    processes = rack.status()
    os.kill(processes["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 120
    while _lives(processes["guest_pid"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(processes["guest_pid"])
    assert not is_up(RackFolder(place))
    with pytest.raises(NotReadyError, match="is not up"):
        rack.let_pass(1)
    rack, started = up(testbed, folder=place)
    assert started
    rack.down()
    assert not place.exists()


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
