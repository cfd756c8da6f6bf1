"""Campaigns on a virtual rack, over SSH: the same answer, and always the way back."""

import io
import json
import os
import signal
import sys
from pathlib import Path

from orchestration.bench.rack import (
    closloop,
    compare_backends,
    program,
)

sys.path.insert(0, str(Path(__file__).parent))

from rack_lab import MARKS, campaign, log, restless_campaign, run_on, wait_for_a_change

pytestmark = MARKS


def test_a_campaign_gives_the_answer_of_the_emulation(lab, unchanged):
    rack, folder = lab
    outcome = compare_backends(rack, folder, campaign(folder, "answer", repeats=3))
    assert outcome.holds, [figure for figure in outcome.figures if figure.holds is False]


def test_a_trial_says_where_its_numbers_come_from_and_what_was_read_back(lab, unchanged):
    rack, folder = lab
    tuners = "[{name: random, of: graphcc}]"
    path = campaign(folder, "restless", tuners, repeats=1, duration="20ms", period="2ms")
    code, said = run_on(rack, folder, path)
    assert code == 0, said
    (trial,) = (folder / "runs" / "restless").glob("*/trial.json")
    facts = json.loads(trial.read_text())["facts"]
    assert facts["read_back"]["wrong"] == 0
    assert facts["read_back"]["equal"] > 100
    assert facts["read_back"]["requested"] > 0
    assert "not known" in facts["expected"]["spine2"]["asic"]
    assert facts["sources"]["leaf1"]["qlen_bytes"].startswith("Linux RED")
    assert "100 ms" in facts["sources"]["spine2"]["qlen_bytes"]
    assert facts["offloads_on"] == []
    reasons = json.loads(trial.read_text())["stamp"]["reasons"]
    assert any("spine2" in reason["text"] and "polled" in reason["text"] for reason in reasons)


def test_a_device_that_vanishes_is_named_and_the_others_are_restored(lab):
    rack, folder = lab
    names = [device.name for device in rack.layout.testbed.devices]
    before = {name: rack.dump(name) for name in names}
    path = restless_campaign(folder, "vanished", "200ms")
    with (folder / "log").open("ab") as file:
        process = rack.start(
            program("run", str(path), "-i", str(rack.inventory)), folder, stdout=file, stderr=file
        )
        wait_for_a_change(rack)
        rack.inject("leaf1", "vanish")
        assert process.wait() == 1
    try:
        assert "leaf1" in log(folder)
        rack.let_pass(60)
        assert [name for name in names if rack.dump(name) != before[name]] in ([], ["leaf1"])
    finally:
        rack.inject("leaf1", "return")
    assert rack.dump("leaf1") == before["leaf1"]
    code, text = closloop(rack, folder, "restore", str(rack.inventory), "--runs-only", "--json")
    assert code == 0, text
    assert all(row["settled"] for row in json.loads(text)["runs"])


def test_a_port_that_flaps_fails_the_trial_by_its_name(lab, unchanged):
    rack, folder = lab
    path = restless_campaign(folder, "flaps", "100ms")
    with (folder / "log").open("ab") as file:
        process = rack.start(
            program("run", str(path), "-i", str(rack.inventory)), folder, stdout=file, stderr=file
        )
        wait_for_a_change(rack, "qdiscs")
        rack.inject("spine1", "port down", "eth0")
        rack.inject("spine1", "port up", "eth0")
        assert process.wait() == 1
    said = log(folder).rpartition("flaps on hardware")[2]
    assert "spine1: eth0, towards leaf1, flapped during the trial: 2 changes" in said
    assert "leaf1: eth2, towards spine1, flapped during the trial: 2 changes" in said
    assert "check the cable, the optics" in said
    assert "spine1: eth0" in (folder / "runs" / "flaps" / "journal.jsonl").read_text()
    # shutting it took its routes: the switch's owner, or provisioning, puts them back
    code, text = closloop(rack, folder, "provision", str(rack.inventory), "--json")
    assert code == 0, text


def test_a_killed_agent_and_a_restarted_redis_end_in_words(lab, unchanged):
    rack, folder = lab
    for number, (device, what) in enumerate([("leaf2", "kill agent"), ("spine2", "redis restart")]):
        name = f"befallen-{number}"
        path = restless_campaign(folder, name, "200ms")
        with (folder / "log").open("ab") as file:
            process = rack.start(
                program("run", str(path), "-i", str(rack.inventory)),
                folder,
                stdout=file,
                stderr=file,
            )
            wait_for_a_change(rack)
            rack.inject(device, what)
            code = process.wait()
        said = log(folder).rpartition(f"{name} on hardware")[2]
        # without its agent the trial is run again by itself; without Redis it goes on, and is
        # invalid if too many readings are missing
        assert code == 0 or (what == "redis restart" and "its Redis was restarted" in said), said


def on_another_machine(rack, folder, *words):
    """Run closloop as another user's machine: another host name, ledger, and account on a switch.

    Returns the exit code and all that it said.
    """
    inventory = folder / "inventory-of-another.yml"
    text = rack.inventory.read_text()
    # SONiC's admin may change CONFIG_DB without being root
    inventory.write_text(text.replace("ansible_become: true", "ansible_become: false"))
    assert inventory.read_text() != text
    argv = ["unshare", "--uts", "sh", "-c", 'hostname desk && exec "$@"', "sh"]
    argv += program(*(str(inventory) if word == "INVENTORY" else word for word in words))
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "others")}
    said = io.BytesIO()
    code = rack.run(argv, cwd=folder, env=environment, stdout=said, stderr=said)
    return code, said.getvalue().decode()


def test_nobody_else_gets_the_rack_during_a_run_and_once_stopped_it_restores(lab, unchanged):
    """Not from here, nor another machine and account, not to provision, to undo or to restore."""
    rack, folder = lab
    names = [device.name for device in rack.layout.testbed.devices]
    # long enough for all that the others try
    path = restless_campaign(folder, "held", "3s", period="10ms")
    other = campaign(folder, "other", "[secn1]", repeats=1)
    with (folder / "log").open("ab") as file:
        process = rack.start(
            program("run", str(path), "-i", str(rack.inventory)), folder, stdout=file, stderr=file
        )
        wait_for_a_change(rack)
        holder = "root@controller campaign held pid"

        code, _ = run_on(rack, folder, other)
        assert code == 3
        assert f"held by {holder}" in log(folder)
        code, said = on_another_machine(rack, folder, "run", str(other), "-i", "INVENTORY")
        assert code == 3, said
        assert said.count(f"held by {holder}") == len(names), said
        for words in (["provision", "INVENTORY"], ["provision", "INVENTORY", "--undo"]):
            code, said = on_another_machine(rack, folder, *words, "--json", "--limit", "leaf1,h1")
            assert code == 3, said
            assert said.count(f"is held by {holder}") == 2, said
        code, said = on_another_machine(
            rack, folder, "restore", "INVENTORY", "--runs-only", "--json"
        )
        assert code == 0, said
        assert said.count("left alone") == len(names), said

        # it still goes on
        process.kill(signal.SIGINT)
        assert process.wait() == 130


def test_nothing_secret_is_on_a_command_line_or_in_a_log(lab):
    rack, folder = lab
    secret = rack.password
    assert secret not in log(folder)
    for path in Path(folder / "runs").rglob("*.json*"):
        assert secret not in path.read_text()
