"""What becomes of Ansible's events, and of what devices say."""

import pytest

from inventory.rack import Access
from orchestration.core.errors import InputError
from orchestration.core.machine import ElapsedTime
from orchestration.provision.outcome import (
    OutcomeCollector,
    ProvisionResult,
    Skipped,
    Step,
    explain,
)
from orchestration.provision.verbs import parameters, skipped_steps

LEAF = Access("leaf1", "192.0.2.1", 2222, "admin")
H1 = Access("h1", "192.0.2.2")


def event(kind, host="leaf1", action="closloop_network", **result):
    data = {"host": host, "task": "Routes", "task_action": action, "duration": 1.5, "res": result}
    return {"event": kind, "event_data": data}


def test_events_become_outcomes_and_steps():
    steps = []
    collector = OutcomeCollector([LEAF, H1], steps.append)
    missing = {"step": "sysctl x = 1", "reason": "no such setting"}
    for taken in (
        {"event": "playbook_on_play_start", "event_data": {"play": "All devices"}},
        event("runner_on_start"),
        event("runner_on_ok", action="ansible.builtin.include_tasks"),
        event("runner_on_ok", changed=True, differences=["mtu eth0"], skipped_steps=[missing]),
        event("runner_on_start", "h1"),
        event("runner_on_ok", "h1", changed=False, differences=[], skipped_steps=[]),
        event("runner_on_ok", "somebody", changed=True),
    ):
        collector.handle(taken)

    assert steps == [
        Step("leaf1", "Routes", "running"),
        Step("leaf1", "Routes", "changed"),
        Step("h1", "Routes", "running"),
        Step("h1", "Routes", "unchanged"),
    ]
    result = ProvisionResult("provision", collector.outcomes, ElapsedTime(3.0, 3.0))
    assert (result.changed, result.failed) == (("leaf1",), ())
    leaf = result.devices["leaf1"]
    assert (leaf.tasks, leaf.changes, leaf.seconds) == (1, ["mtu eth0"], 1.5)
    assert leaf.skipped == [Skipped("sysctl x = 1", "no such setting")]
    assert result.to_json()["devices"]["leaf1"]["skipped"] == [missing]


def test_a_module_s_own_message_and_remedy_are_passed_on():
    collector = OutcomeCollector([LEAF], lambda step: None)
    collector.handle(
        event("runner_on_failed", msg="there is no interface 'eth9'", remedy="correct it")
    )
    assert collector.outcomes["leaf1"].failure == "there is no interface 'eth9'"
    assert collector.outcomes["leaf1"].remedy == "correct it"


def test_a_device_is_held_while_a_task_runs_and_for_the_next_one():
    collector = OutcomeCollector([LEAF], lambda step: None)
    leaf = collector.outcomes["leaf1"]
    held = []
    for taken in (
        event("runner_on_start"),
        event("runner_on_unreachable", unreachable=True),
        event("runner_on_ok", lease="c" * 32),
        event("runner_on_unreachable", unreachable=True),
        event("runner_on_failed"),
        event("runner_on_ok", lease=""),
    ):
        collector.handle(taken)
        held.append(leaf.held)
    assert held == [True, False, True, True, False, False]


def test_what_a_device_says_is_shown_as_one_safe_line():
    collector = OutcomeCollector([LEAF], lambda step: None)
    nasty = "\x1b[2Jboo\n[red]bold[/red]" + "x" * 1000
    collector.handle(event("runner_on_failed", msg=nasty, remedy="", differences=[nasty, 7]))
    leaf = collector.outcomes["leaf1"]
    assert leaf.failure.startswith("[2Jboo [red]bold[/red]xxx")
    assert len(leaf.failure) == len(leaf.changes[0]) == 300
    assert leaf.changes[1] == "7"


def test_results_of_another_shape_do_no_harm():
    collector = OutcomeCollector([LEAF], lambda step: None)
    collector.handle(
        event("runner_on_ok", changed=True, differences="none", skipped_steps=["a", None])
    )
    collector.handle({"event": "runner_on_ok", "event_data": None})
    collector.handle({})
    assert collector.outcomes["leaf1"].changes == collector.outcomes["leaf1"].skipped == []


UNREACHABLE = (
    (
        "Host key verification failed.\r\nkex_exchange_identification: Connection closed by remote "
        "host\r\nConnection closed by UNKNOWN port 65535",
        "a jump host to it refuses: its host key is not known, or it does not accept the login",
        "see what this says: ssh -p 2222 admin@192.0.2.1; a jump host's key belongs in "
        "~/.ssh/known_hosts, its user and key in ~/.ssh/config",
    ),
    (
        "Data could not be sent to remote host: No ED25519 host key is known for 192.0.2.1 and you "
        "have requested strict checking.\r\nHost key verification failed.",
        "its host key is not known",
        "compare its key with one you trust, then: ssh-keyscan -p 2222 192.0.2.1 >> known_hosts",
    ),
    (
        "@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@ Host key verification failed.",
        "its host key is not the known one: somebody may intercept the connection",
        "find out why; if the device was reinstalled, take its old key out of known_hosts",
    ),
    (
        "admin@192.0.2.1: Permission denied (publickey,password).",
        "it refuses the login of admin",
        "check ansible_user and ansible_ssh_private_key_file, or give the password with --ask-pass",
    ),
    (
        "Missing sudo password",
        "sudo wants a password of admin",
        "give it with --ask-become-pass",
    ),
    (
        "OSError: [Errno 28] No space left on device: '/tmp/ansible_x'",
        "its disk is full",
        "make room on the device, then provision again",
    ),
    (
        "something else",
        "something else",
        "see the device's log; `closloop provision --limit leaf1` tries only this device",
    ),
)


@pytest.mark.parametrize(("said", "message", "remedy"), UNREACHABLE)
def test_each_failure_has_its_remedy(said, message, remedy):
    assert explain(LEAF, said) == (message, remedy)


def test_steps_left_out_on_many_devices_are_told_once():
    collector = OutcomeCollector([LEAF, H1], lambda step: None)
    missing = {"step": "trust eth0", "reason": "the NIC's driver does not offer it"}
    for host in ("leaf1", "h1"):
        collector.handle(event("runner_on_ok", host, skipped_steps=[missing]))
    result = ProvisionResult("provision", collector.outcomes, ElapsedTime(1.0, 1.0))
    assert skipped_steps(result) == [(*missing.values(), "leaf1, h1")]


def test_dcqcn_parameters_are_numbers_by_name():
    assert parameters(["rp_ai_rate=5", "np_cnp_dscp=48"]) == {"rp_ai_rate": 5, "np_cnp_dscp": 48}
    for text in ("rp_ai_rate", "rp_ai_rate=fast", "../x=1", "=1"):
        with pytest.raises(InputError, match="is not NAME=VALUE"):
            parameters([text])
