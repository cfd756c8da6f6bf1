"""Jump hosts through real SSH servers: every hop is logged in to and its host key verified."""

import dataclasses
import socket
import subprocess

import pytest

from inventory.rack import Access
from orchestration.device.client import AgentClient, open_agents
from orchestration.device.errors import DeviceGone, LoginRefused
from orchestration.device.jump_hosts import Hop, hops_to
from orchestration.device.ssh import Secrets

pytestmark = pytest.mark.ssh


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of one's own: its `.ssh/config` is written by the tests."""
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def block(name, server, *more):
    lines = (
        f"Host {name}", "HostName 127.0.0.1", f"Port {server.port}", f"User {server.user}",
        f"IdentityFile {server.key_file}", *more,
    )  # fmt: skip
    return "\n  ".join(lines) + "\n"


def configure(home, *blocks):
    (home / ".ssh" / "config").write_text("".join(blocks))


def know(home, *servers):
    text = "".join(server.known_hosts.read_text() for server in servers)
    (home / ".ssh" / "known_hosts").write_text(text)


def device(server, **changes):
    access = Access("leaf1", "127.0.0.1", server.port, server.user, str(server.key_file))
    return dataclasses.replace(access, **changes)


def logins(server):
    return (server.known_hosts.parent / "log").read_text().count("Accepted publickey")


def test_one_jump_host(home, loopback, jump_hosts):
    first, *_ = jump_hosts
    configure(home, block("bastion", first), "Host 127.0.0.1\n  ProxyJump bastion\n")
    know(home, loopback, first)
    before = logins(first), logins(loopback)
    client = AgentClient(device(loopback), "", [])
    try:
        assert client.call("clock")["monotonic_ns"] > 0
    finally:
        client.close()
    assert (logins(first), logins(loopback)) == (before[0] + 1, before[1] + 1)
    jump = client._connection.gateway
    assert not jump.is_connected


def test_jump_hosts_are_visited_in_the_order_of_proxyjump(home, loopback, jump_hosts):
    """The last one forwards to the device: the device is only reached if the order is right."""
    first, second, closed = jump_hosts
    configure(
        home, block("a", first), block("b", second), block("shut", closed),
        "Host 127.0.0.1\n  ProxyJump a,b\n",
    )  # fmt: skip
    assert [hop.name for hop in hops_to(device(loopback))] == ["a", "b", "127.0.0.1"]
    know(home, loopback, first, second, closed)
    AgentClient(device(loopback), "", []).close()

    configure(
        home, block("a", first), block("shut", closed), "Host 127.0.0.1\n  ProxyJump a,shut\n"
    )
    with pytest.raises(
        DeviceGone, match=r"leaf1: jump host shut does not forward to .*127\.0\.0\.1"
    ):
        AgentClient(device(loopback), "", [])
    configure(
        home, block("a", first), block("shut", closed), "Host 127.0.0.1\n  ProxyJump shut,a\n"
    )
    with pytest.raises(DeviceGone, match=r"jump host shut does not forward to jump host a \("):
        AgentClient(device(loopback), "", [])


def other_key(tmp_path):
    path = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_key_that_is_unknown_or_changed_is_refused_at_every_hop(
    home, tmp_path, loopback, jump_hosts, place, changed
):
    first, second, _ = jump_hosts
    configure(home, block("a", first), block("b", second), "Host 127.0.0.1\n  ProxyJump a,b\n")
    servers = [first, second, loopback]
    bad = servers.pop(place)
    know(home, *servers)
    if changed:
        with (home / ".ssh" / "known_hosts").open("a") as file:
            file.write(f"[127.0.0.1]:{bad.port} {other_key(tmp_path)}\n")
    before = logins(bad)
    with pytest.raises(LoginRefused) as caught:
        AgentClient(device(loopback), "", [], Secrets(login="sesame"))
    hop = ("jump host a (127.0.0.1", "jump host b (127.0.0.1", "127.0.0.1")[place]
    if changed:
        assert f"{hop}" in caught.value.what
        assert "has another host key than the known one" in caught.value.what
    else:
        assert f"the host key of {hop}" in caught.value.what
        scan = f"{('', 'ssh a ', 'ssh b ')[place]}ssh-keyscan -p {bad.port} 127.0.0.1 >>"
        assert scan in caught.value.remedy
    assert logins(bad) == before


def test_a_key_of_a_hashed_host_is_known_and_a_revoked_one_refused(home, loopback):
    known = loopback.known_hosts.read_text()
    _, kind, key = known.split()
    file = home / ".ssh" / "known_hosts"
    file.write_text(f"# comment\n\nbroken line\nhost ssh-rsa AAAA\n{known}")
    AgentClient(device(loopback), "", []).close()
    file.write_text(known)
    subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "127.0.0.1" not in file.read_text()
    AgentClient(device(loopback), "", []).close()
    file.write_text(f"{known}@revoked * {kind} {key}\n")
    with pytest.raises(LoginRefused, match=r"the host key of 127\.0\.0\.1 is not known"):
        AgentClient(device(loopback), "", [])


def test_a_jump_host_is_never_given_the_devices_password_or_key(home, loopback, jump_hosts):
    first, *_ = jump_hosts
    stranger = home / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    jump = block("a", dataclasses.replace(first, key_file=stranger))
    configure(home, jump, "Host 127.0.0.1\n  ProxyJump a\n")
    know(home, loopback, first)
    log = first.known_hosts.parent / "log"
    before = log.stat().st_size
    with pytest.raises(LoginRefused, match=r"jump host a .* refuses the login") as caught:
        AgentClient(device(loopback), "", [], Secrets(login="sesame"))
    assert "IdentityFile" in caught.value.remedy
    said = log.read_text()[before:]
    assert "Failed password" not in said


def test_a_proxy_command_leads_to_the_device(home, loopback, jump_hosts, tmp_path, monkeypatch):
    """With the port of the inventory, and with the secrets of the environment left out."""
    first, *_ = jump_hosts
    monkeypatch.setenv("CLOSLOOP_SSH_PASSWORD", "sesame")
    script = tmp_path / "jump"
    options = f"-F {home}/.ssh/config -o UserKnownHostsFile={home}/.ssh/known_hosts"
    script.write_text(f'env > {tmp_path}/environment\nexec ssh {options} -W "$1" bastion\n')
    configure(home, block("bastion", first), f"Host 127.0.0.1\n  ProxyCommand sh {script} %h:%p\n")
    know(home, loopback, first)
    before = logins(first)
    client = AgentClient(device(loopback), "", [])
    proxy = client._connection.connect_kwargs["sock"]
    client.close()
    assert logins(first) == before + 1
    assert proxy._process.returncode is not None
    assert "sesame" not in (tmp_path / "environment").read_text()


def test_a_proxy_command_that_refuses_a_host_key_says_so(home, loopback, jump_hosts):
    first, *_ = jump_hosts
    command = f"ssh -F {home}/.ssh/config -o UserKnownHostsFile={home}/.ssh/known_hosts"
    configure(
        home, block("bastion", first),
        f"Host 127.0.0.1\n  ProxyCommand {command} -W %h:%p bastion\n",
    )  # fmt: skip
    know(home, loopback)
    with pytest.raises(LoginRefused, match=r"ssh … bastion\) says: .*ost key verification failed"):
        AgentClient(device(loopback), "", [])
    configure(home, "Host 127.0.0.1\n  ProxyCommand false\n")
    with pytest.raises(DeviceGone, match=r"the ProxyCommand to 127.0.0.1 .* leads to no SSH"):
        AgentClient(device(loopback), "", [])


def test_what_openssh_reads_in_a_configuration(home):
    access = Access("leaf1", "10.0.0.9", 2222, "admin")
    last = Hop("10.0.0.9", "admin", 2222)

    def names(text):
        configure(home, text)
        return [(hop.name, hop.user, hop.port) for hop in hops_to(access)[:-1]]

    assert names("Host *\n  User me\n  ProxyJump you@a:99,ssh://[::1]\n") == [
        ("a", "you", 99), ("::1", "me", 22),
    ]  # fmt: skip
    assert names("Host 10.*\n  ProxyJump none\nHost *\n  ProxyJump a\n") == []
    # the jump host itself matches too: it is reached directly
    assert names("Host *\n  User me\n  ProxyJump a\n") == [("a", "me", 22)]
    # a jump host's own jump host
    assert names("Host a\n  ProxyJump b\nHost 10.*\n  ProxyJump a,c\nHost *\n  User me\n") == [
        ("b", "me", 22), ("a", "me", 22), ("c", "me", 22),
    ]  # fmt: skip
    configure(home, "Host *\n  ProxyCommand nc %h %p %r\n  ProxyJump a\n")
    assert hops_to(access) == [dataclasses.replace(last, command="nc 10.0.0.9 2222 admin")]
    configure(home, "Host a\n ProxyJump b\nHost b\n ProxyJump a\nHost 10.*\n ProxyJump a\n")
    with pytest.raises(LoginRefused, match="in a circle: a, b, a"):
        hops_to(access)
    configure(home, "Match nonsense\n ProxyJump a\n")
    with pytest.raises(LoginRefused, match=r"leaf1: ~/.ssh/config cannot be read: "):
        hops_to(access)
    configure(home, "Host *\n ProxyJump a b\n")
    with pytest.raises(LoginRefused, match="'a b' is not a host"):
        hops_to(access)


def test_a_jump_host_that_does_not_answer_is_named(home, loopback):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        configure(
            home,
            f"Host a\n  HostName 127.0.0.1\n  Port {closed.getsockname()[1]}\n",
            "Host 127.0.0.1\n  ProxyJump a\n",
        )
        with pytest.raises(DeviceGone, match=r"leaf1: jump host a \(.*\) cannot be reached"):
            AgentClient(device(loopback), "", [])


def test_many_devices_behind_one_jump_host(home, loopback, jump_hosts):
    """sshd turns logins away while ten others are under way (MaxStartups)."""
    first, *_ = jump_hosts
    configure(home, block("bastion", first), "Host 127.0.0.1\n  ProxyJump bastion\n")
    know(home, loopback, first)
    devices = [device(loopback, device=f"h{number}") for number in range(24)]
    agents, problems = open_agents(devices, "", {item.device: () for item in devices})
    for agent in agents.values():
        agent.close()
    assert problems == []
    assert len(agents) == 24
