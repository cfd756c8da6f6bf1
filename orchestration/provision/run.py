"""Runs the playbooks on a rack through ansible-runner.

The private folder of ansible-runner is temporary. Passwords are typed at Ansible's prompts, so they
do not appear in arguments, the environment or files.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import orchestration
from inventory.rack import Access, Rack
from orchestration.agent.linux.fib import overlapping_routes
from orchestration.agent.linux.netlink import RouteSocket
from orchestration.core.errors import (
    InputError,
    Interrupted,
    NotReadyError,
    check_known,
    needs,
    not_installed,
    unwritable,
)
from orchestration.core.machine import Stopwatch
from orchestration.core.trial import HostSpec
from orchestration.device.client import holder_name
from orchestration.device.errors import printable
from orchestration.device.jump_hosts import SECRET_VARIABLES
from orchestration.device.ssh import Secrets
from orchestration.provision.desired import RoceSettings, desired_state, login, playbook_inventory
from orchestration.provision.outcome import (
    DeviceOutcome,
    OutcomeCollector,
    ProvisionResult,
    Step,
    explain,
)

What = Literal["provision", "verify", "undo"]
_PLAYBOOKS: dict[What, str] = {"provision": "site.yml", "verify": "verify.yml", "undo": "undo.yml"}
PLAYBOOKS_FOLDER = Path(orchestration.__file__).parents[1] / "playbooks"
_LOGIN_PROMPT, _BECOME_PROMPT = r"SSH password:\s*?$", r"BECOME password.*:\s*?$"
# How often a request to stop is noticed.
_POLL_S = 1
_LOGIN_TIMEOUT_S = 20


def provision(
    rack: Rack,
    what: What = "provision",
    *,
    limit: Collection[str] = (),
    check: bool = False,
    secrets: Secrets | None = None,
    host: HostSpec | None = None,
    roce: RoceSettings | None = None,
    install_collector: bool = False,
    listener: Callable[[Step], None] = lambda step: None,
) -> ProvisionResult:
    """Bring the rack's devices into their desired state, verify that they are in it, or undo it.

    `limit` names devices; empty means all. With `check` nothing is changed. Each device's lease is
    taken while it is changed, so a device that a run holds, or has left unrestored, fails. A device
    that fails does not stop the others: see `failed` of the result.

    Raises:
        InputError: a device that is not in the rack; see `desired_state`.
        NotReadyError: Ansible is not installed or could not run the playbooks at all, or this
            machine has routes that overlap with the fabric's prefix.
        Interrupted: Ctrl-C; changes made so far stay until an undo.
    """
    accesses = _devices_of(rack, limit)
    if what == "provision":
        _refuse_overlap(rack)
    inventory = playbook_inventory(rack, desired_state(rack, host, roce))
    # devices name this holder to others who want to change them meanwhile
    holder = holder_name(f"closloop provision ({what})")
    inventory["all"]["vars"] = {"closloop_holder": holder, "closloop_lease": uuid4().hex}
    results = OutcomeCollector(accesses, listener)
    secrets = secrets or Secrets()
    stopwatch = Stopwatch()
    folder = Path(tempfile.mkdtemp(prefix="closloop-provision-"))

    play = partial(_run_playbook, folder, inventory, secrets)
    try:
        try:
            options = _options(check, secrets, install_collector)
            play(
                _PLAYBOOKS[what],
                [access.device for access in accesses],
                options,
                results.handle,
            )
        finally:
            held = [name for name, outcome in results.outcomes.items() if outcome.held]
            if held and not check and what != "verify":
                # if this fails, the leases expire
                with suppress(NotReadyError):
                    play("release.yml", held, _options(False, secrets, False), lambda event: None)
    finally:
        _end_connections(folder)
        shutil.rmtree(folder, ignore_errors=True)
    _explain_failures(rack, accesses, results.outcomes, secrets)
    return ProvisionResult(what, results.outcomes, stopwatch.took())


def _explain_failures(
    rack: Rack,
    accesses: list[Access],
    outcomes: Mapping[str, DeviceOutcome],
    secrets: Secrets,
) -> None:
    """Add to outcomes what Ansible did not report: ssh's message, and devices without a task."""
    for access in accesses:
        outcome = outcomes[access.device]
        # with a password, ssh cannot be run again here: it would need a terminal
        if outcome.unexplained and not secrets.login and (ssh_error := _ssh_error(access, rack)):
            outcome.failure, outcome.remedy = explain(access, ssh_error)
    for name, outcome in outcomes.items():
        if not outcome.tasks:
            outcome.failure = "Ansible ran no task on it"
            outcome.remedy = f"`closloop provision --limit {name}` tries only this device"


def save_inventory(
    rack: Rack, path: Path, host: HostSpec | None = None, roce: RoceSettings | None = None
) -> None:
    """Write the inventory for running the playbooks by hand. Raises InputError."""
    text = json.dumps(playbook_inventory(rack, desired_state(rack, host, roce)), indent=2)
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise unwritable(path, error, "choose another file", InputError) from error


def _devices_of(rack: Rack, limit: Collection[str]) -> list[Access]:
    known = {device.name: rack.access[device.name] for device in rack.testbed.devices}
    if rack.collector is not None:
        known[rack.collector.device] = rack.collector
    check_known("--limit", f"rack {rack.name} has no device {{!r}}", limit, known, "it has ")
    return [access for name, access in known.items() if not limit or name in limit]


def _refuse_overlap(rack: Rack) -> None:
    """Raise NotReadyError if this machine has routes that overlap with the fabric's prefix."""
    fabric = rack.addresses
    own_networks = {*fabric.blocks.values()}
    own_networks.update(
        f"{address}/32" for address in (*fabric.nics.values(), *fabric.routers.values())
    )
    with RouteSocket() as route:
        overlapping = overlapping_routes(route, str(fabric.prefix), own_networks)
    if overlapping:
        raise NotReadyError(
            f"this machine has a route to {overlapping[0]}, and the fabric's addresses are in "
            f"{fabric.prefix}: devices could no longer reach that network",
            "give the fabric a network that nobody uses: closloop_fabric_prefix in the inventory",
        )


def _ssh_error(access: Access, rack: Rack) -> str:
    """Log in once with ssh, as Ansible does; return ssh's error message, or ""."""
    variables = login(access, rack.known_hosts_file)
    command = ["ssh", *shlex.split(variables["ansible_ssh_common_args"]), "-o", "BatchMode=yes"]
    command += ["-o", f"ConnectTimeout={_LOGIN_TIMEOUT_S}", "-p", str(access.port)]
    if key_file := variables.get("ansible_ssh_private_key_file"):
        command += ["-i", key_file]
    try:
        login_run = subprocess.run(
            [*command, f"{access.user}@{access.address}", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=2 * _LOGIN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return login_run.stderr if login_run.returncode else ""


def _options(check: bool, secrets: Secrets, install_collector: bool) -> str:
    options = ["--check"] if check else []
    options += ["--ask-pass"] if secrets.login else []
    options += ["--ask-become-pass"] if secrets.become else []
    if install_collector:
        options += ["-e", "closloop_collector_install=true"]
    return " ".join(options)


def _run_playbook(
    folder: Path,
    inventory: Mapping[str, Any],
    secrets: Secrets,
    playbook: str,
    devices: list[str],
    options: str,
    handle_event: Callable[[Mapping[str, Any]], None],
) -> None:
    """Run a playbook on some devices, passing Ansible's events to `handle_event`.

    Raises NotReadyError if Ansible cannot run it, and Interrupted on SIGINT or SIGTERM.
    """
    with needs("provisioning", "hardware"):
        from ansible_runner import Runner
    config = _runner_config(folder, inventory, secrets, playbook, devices, options)

    def handle(event: Mapping[str, Any]) -> bool:
        handle_event(event)
        return False  # the event's file is not needed

    with _stop_requests() as stop_requests:
        runner = Runner(config, event_handler=handle, cancel_callback=lambda: bool(stop_requests))
        status, code = runner.run()
    if stop_requests:
        raise Interrupted(
            "stopped; what was changed on devices stays",
            "`closloop provision INVENTORY --undo` restores the former settings",
        )
    # 2: a task failed, 4: a device was unreachable; both are reported per device
    if status != "successful" and code not in (0, 2, 4):
        end = printable("".join(runner.stdout.readlines()[-8:]))
        raise NotReadyError(
            f"Ansible could not run {playbook} (exit code {code}): {end}",
            f"check that the playbooks in {PLAYBOOKS_FOLDER} are as installed",
        )


def _runner_config(
    folder: Path,
    inventory: Mapping[str, Any],
    secrets: Secrets,
    playbook: str,
    devices: list[str],
    options: str,
) -> Any:
    """Return the prepared `RunnerConfig` of a playbook, whose inventory is written to `folder`."""
    from ansible_runner import RunnerConfig

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if shutil.which("ansible-playbook", path=path) is None:
        raise not_installed("provisioning", "the program ansible-playbook", "hardware")
    hosts = folder / "inventory.json"
    hosts.write_text(json.dumps(inventory))
    hosts.chmod(0o600)
    passwords = {_LOGIN_PROMPT: secrets.login, _BECOME_PROMPT: secrets.become}
    config = RunnerConfig(
        private_data_dir=str(folder),
        project_dir=str(PLAYBOOKS_FOLDER),
        playbook=playbook,
        inventory=str(hosts),
        limit=",".join(devices),
        cmdline=options or None,
        quiet=True,
        envvars={
            "ANSIBLE_CONFIG": str(PLAYBOOKS_FOLDER / "ansible.cfg"),
            # ansible-runner would turn it off
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "ANSIBLE_FORKS": str(max(1, len(devices))),
            # temporary files and connections are removed with the folder
            "ANSIBLE_HOME": str(folder / "ansible"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
            "PATH": path,
        },
        passwords={prompt: word for prompt, word in passwords.items() if word},
        settings={"pexpect_timeout": _POLL_S},
    )
    config.prepare()
    for name in SECRET_VARIABLES:
        config.env.pop(name, None)
    return config


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Yield a list that collects SIGINT (Ctrl-C) and SIGTERM, which are ignored meanwhile."""
    stop_requests: list[int] = []
    former_handlers = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            former_handlers[number] = signal.signal(
                number, lambda received, _: stop_requests.append(received)
            )
    except ValueError:  # not in the main thread, the only one that can handle signals
        pass
    try:
        yield stop_requests
    finally:
        for number, handler in former_handlers.items():
            signal.signal(number, handler)


def _end_connections(folder: Path) -> None:
    """Close the connections that ssh keeps open for the next task."""
    for socket in (folder / "cp").glob("*"):
        subprocess.run(
            ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "device"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
