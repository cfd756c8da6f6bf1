"""Which device a snapshot is of: identities are read, compared, and refuse another's snapshot."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestration.agent.main import OperationError
from orchestration.agent.safety import state
from orchestration.agent.safety.identity import identity, identity_mismatch, same_device
from orchestration.agent.sonic import configdb
from orchestration.agent.sonic.resp import CONFIG_DB, Redis

HOST = {"machine_id": "a" * 32, "chassis": "", "macs": ["00:11:22:33:44:55", "00:11:22:33:44:56"]}
SWITCH = {"machine_id": "c" * 32, "chassis": "00:aa:bb:cc:dd:ee", "macs": ["00:aa:bb:cc:dd:ef"]}
NOBODY: dict[str, Any] = {"machine_id": "", "chassis": "", "macs": []}


@pytest.mark.parametrize(
    ("noted", "here", "what"),
    [
        (HOST, HOST, ""),
        (HOST, {**HOST, "machine_id": "b" * 32}, f"its machine id is {'b' * 32}, not {'a' * 32}"),
        # cloned with its machine id, in other hardware
        (HOST, {**HOST, "macs": ["00:11:22:33:44:57"]}, "it has the MAC addresses 00:11:22:33:4"),
        # a card was swapped
        (HOST, {**HOST, "macs": ["00:11:22:33:44:55", "00:11:22:33:44:99"]}, ""),
        # SONiC: the machine id is the image's, so it changes with an update, and others have it
        (SWITCH, {**SWITCH, "machine_id": "d" * 32}, ""),
        (SWITCH, {**SWITCH, "chassis": "00:aa:bb:cc:dd:00"}, "its MAC address is 00:aa:bb:cc:dd:0"),
        # what one does not know shows nothing
        (HOST, NOBODY, ""),
        (NOBODY, HOST, ""),
        (None, HOST, ""),
        ("nonsense", HOST, ""),
        ({"machine_id": 5, "macs": 5}, HOST, "its machine id is"),
    ],
)
def test_what_shows_that_identities_are_of_two_devices(noted: Any, here: Any, what: str) -> None:
    found = identity_mismatch(noted, here)
    assert found.startswith(what)
    assert bool(found) == bool(what)


def test_a_device_is_the_same_only_where_both_know_something() -> None:
    assert same_device(HOST, {**HOST, "macs": []})
    assert same_device(SWITCH, {**SWITCH, "machine_id": "d" * 32})
    assert not same_device(NOBODY, NOBODY)
    assert not same_device(HOST, NOBODY)
    # the machine id of a SONiC image alone proves nothing
    assert not same_device(SWITCH, {**SWITCH, "chassis": "", "macs": []})
    assert not same_device(None, HOST)
    assert not same_device({}, {})


def interface(root: Path, name: str, address: str, **files: str) -> None:
    folder = root / "sys/class/net" / name
    folder.mkdir(parents=True)
    for file, text in {"address": address, **files}.items():
        path = folder / file.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")


def test_an_identity_is_the_machine_id_and_the_addresses_of_hardware(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("a" * 32 + "\n")
    interface(tmp_path, "lo", "00:00:00:00:00:00", addr_assign_type="0")
    interface(tmp_path, "veth1", "02:00:00:00:00:01", addr_assign_type="3")
    none = str(tmp_path / "no.sock")
    found = identity(str(tmp_path), none)
    # a container: what it has
    assert found == {"machine_id": "a" * 32, "chassis": "", "macs": ["02:00:00:00:00:01"]}

    interface(tmp_path, "eth0", "00:11:22:33:44:55", addr_assign_type="0", device="")
    # a virtual function draws its own at each boot
    interface(tmp_path, "eth0v0", "d2:11:22:33:44:55", addr_assign_type="1", device="")
    # a member of a bond has the bond's address
    bonded = {
        "addr_assign_type": "3",
        "device": "",
        "bonding_slave__perm_hwaddr": "00:11:22:33:44:66",
    }
    interface(tmp_path, "eth1", "00:11:22:33:44:55", **bonded)
    assert identity(str(tmp_path), none)["macs"] == ["00:11:22:33:44:55", "00:11:22:33:44:66"]

    (tmp_path / "etc/machine-id").write_text("uninitialized\n")
    assert identity(str(tmp_path), none)["machine_id"] == ""


def test_a_snapshot_of_another_device_is_refused_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = state.snapshot({"interfaces": ["lo"]})
    assert wanted["identity"] == identity()
    assert state.restore(wanted)["differences"] == []

    def no_plan(*_: Any) -> None:
        pytest.fail("went on")

    monkeypatch.setattr(state, "restore_plan", no_plan)
    other = {**wanted["identity"], "machine_id": "b" * 32, "macs": ["00:11:22:33:44:55"]}
    for boot in (wanted["boot"], "the one before"):
        with pytest.raises(
            OperationError, match=r"of another device: .*; nothing was written"
        ) as e:
            state.restore({**wanted, "identity": other, "boot": boot})
        assert "--forget" in e.value.remedy


@pytest.mark.redis
def test_a_sonic_switch_refuses_the_profiles_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows have the same names on all switches, the image's machine id is the same too."""
    path = str(tmp_path / "redis.sock")
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", path, "--save", ""],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    monkeypatch.setattr(configdb, "Redis", lambda: Redis(path, restart_timeout_s=0.2))
    monkeypatch.setattr(state, "identity", lambda: identity(str(tmp_path), path))
    redis = Redis(path, restart_timeout_s=20.0)
    profile, metadata = "WRED_PROFILE|CLOSLOOP_Ethernet0_3", "DEVICE_METADATA|localhost"
    try:
        redis.call(CONFIG_DB, "HSET", metadata, "mac", "00:AA:BB:CC:DD:EE")
        redis.call(CONFIG_DB, "HSET", profile, "green_min_threshold", "1000")
        theirs = state.snapshot({"rows": [profile]})
        assert theirs["identity"]["chassis"] == "00:aa:bb:cc:dd:ee"

        redis.call(CONFIG_DB, "HSET", metadata, "mac", "00:aa:bb:cc:dd:ff")
        redis.call(CONFIG_DB, "HSET", profile, "green_min_threshold", "7")
        with pytest.raises(OperationError, match="its MAC address is 00:aa:bb:cc:dd:ff, not 00:aa"):
            state.restore({**theirs, "boot": "another"})
        assert redis.hash(CONFIG_DB, profile) == {"green_min_threshold": "7"}
    finally:
        redis.close()
        server.kill()
        server.wait()
