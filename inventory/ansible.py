"""Reads a rack from a standard Ansible YAML inventory.

The groups `hosts`, `leaves`, `spines` and `cores` hold the devices of tiers 0 to 3. The group
`collector` holds the machine that keeps the live copy of measurements. Variables named `closloop_*`
are defined by closloop (`inventory.ansible_schema`), all others by Ansible. `write_rack` writes
such a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from inventory.ansible_groups import ALL, Groups, inventory_problems
from inventory.ansible_links import (
    ListedLinks,
    agreement_problems,
    link_specs,
    reach_problems,
    testbed_problems,
)
from inventory.ansible_schema import (
    ACCESS,
    CLUSTER,
    COLLECTOR,
    DEVICE_NAMES,
    FABRIC_NAMES,
    GROUPS,
    PREFIX,
    DeviceVariables,
    FabricVariables,
    RackVariables,
    names_of,
)
from inventory.ansible_text import write_rack
from inventory.files import load_testbed
from inventory.rack import Access, Rack, switch_system
from inventory.schema import MAX_CLASSES
from inventory.strictyaml import Document, Loc, in_order, read, suggest
from inventory.variant import is_path, relative_to, split_name
from orchestration.core.errors import InputError, Problem
from orchestration.core.problems import Code
from orchestration.core.topology import ETHERNET_HEADER_BYTES, Device, Testbed
from orchestration.core.units import format_size

__all__ = ["Machines", "load_machines", "load_rack", "write_rack"]


def load_rack(path: Path) -> Rack:
    """Return the rack of an inventory file.

    Raises InputError for a bad file, with every problem that can be found in one pass.
    """
    path = Path(path)
    groups = Groups(read(path))
    _raise_if_any(inventory_problems(groups, path))
    tiers, problems = _tiers(groups)
    _raise_if_any(problems)

    document = _rack_document(groups, names_of(RackVariables))
    names = list(dict.fromkeys((*tiers, *groups.hosts_of(COLLECTOR))))
    documents = {name: _device_document(groups, name) for name in names}
    rack_variables, devices, problems = _checked(document, documents)
    for name, variables in devices.items():
        problems += _device_problems(name, tiers.get(name), variables, documents[name])
    _raise_if_any(problems)
    assert rack_variables is not None  # otherwise there were problems, raised above

    name = rack_variables.closloop_name or path.stem
    listed = {
        device: ListedLinks(device, tier, devices[device].closloop_links, documents[device])
        for device, tier in tiers.items()
    }
    if rack_variables.closloop_testbed is not None:
        testbed = _named_testbed(rack_variables.closloop_testbed, path, document)
        _raise_if_any(_match_problems(groups, listed, testbed))
        interfaces = {n: tuple(k.interface for k in item.links) for n, item in listed.items()}
    else:
        testbed, interfaces = _built_testbed(name, _rack_document(groups, FABRIC_NAMES), listed)
    _raise_if_any(list(_queue_problems(devices, documents, testbed)))
    access = {n: _access(n, devices[n], interfaces.get(n, ())) for n in names}
    collector = next(iter(groups.hosts_of(COLLECTOR)), None)
    rack = Rack(
        name=name,
        testbed=testbed,
        access={device: access[device] for device in tiers},
        collector=access[collector] if collector else None,
        known_hosts_file=_from_folder(path, rack_variables.closloop_known_hosts),
        safety=rack_variables.closloop_safety.safety(),
        fabric_prefix=rack_variables.closloop_fabric_prefix,
        scale=rack_variables.closloop_scale,
    )
    _check_addresses(rack, document)
    return rack


def _check_addresses(rack: Rack, document: Document) -> None:
    """Raise InputError, with the prefix's line, if the fabric's addresses do not fit into it."""
    try:
        rack.addresses  # noqa: B018 (computes them)
    except ValueError as error:
        remedy = "give it a larger network that nobody else uses"
        _raise_if_any([document.problem(("closloop_fabric_prefix",), str(error), remedy)])


@dataclass(frozen=True)
class Machines:
    """Machines of a cluster that run trials, and how to log in to each.

    `known_hosts_file` is used as in `Rack`.
    """

    access: tuple[Access, ...]
    known_hosts_file: str = ""


def load_machines(path: Path) -> Machines:
    """Return the machines of an inventory's group `cluster`; the file need not have a rack.

    Raises InputError for a bad file, or one without such a group.
    """
    path = Path(path)
    groups = Groups(read(path))
    _raise_if_any(inventory_problems(groups, path))
    names = list(groups.hosts_of(CLUSTER))
    if not names:
        what = f"no machine in the group {CLUSTER!r}"
        remedy = f"list the machines that run trials in a group {CLUSTER}"
        _raise_if_any([groups.document.problem((), what, remedy)])
    documents = {name: _device_document(groups, name) for name in names}
    document = _rack_document(groups, names_of(RackVariables))
    rack_variables, devices, problems = _checked(document, documents)
    _raise_if_any(problems)
    assert rack_variables is not None  # otherwise there were problems, raised above
    access = tuple(_access(name, devices[name], ()) for name in names)
    return Machines(access, _from_folder(path, rack_variables.closloop_known_hosts))


def _checked(
    document: Document, documents: Mapping[str, Document]
) -> tuple[RackVariables | None, dict[str, DeviceVariables], list[Problem]]:
    """Return the variables of the rack and of its devices, and the problems of both."""
    rack_variables, problems = document.check(RackVariables)
    devices: dict[str, DeviceVariables] = {}
    for name, own in documents.items():
        variables, own_problems = own.check(DeviceVariables)
        problems += own_problems
        if variables is not None:
            devices[name] = variables
    problems += _address_problems(devices, documents)
    return rack_variables, devices, problems


def _raise_if_any(problems: list[Problem]) -> None:
    if problems:
        raise InputError(in_order(problems))


def _from_folder(path: Path, file: str) -> str:
    """Return the path of a file that an inventory names, relative to the inventory's folder."""
    return file if not file or file.startswith("~") else str(path.parent / file)


def _tiers(groups: Groups) -> tuple[dict[str, int], list[Problem]]:
    """Return the fabric's devices in order, with their tiers, and the problems of the groups."""
    document = groups.document
    result: dict[str, int] = {}
    problems = []
    for tier, group in enumerate(GROUPS):
        for name, loc in groups.hosts_of(group).items():
            if name in result:
                what = f"{name} is in group {GROUPS[result[name]]!r} and in {group!r}"
                problems.append(document.problem(loc, what, "take it out of one of the two"))
            result.setdefault(name, tier)
    for kind, found in (("switch", any(result.values())), ("host", 0 in result.values())):
        if not found:
            hints = [suggest(name, GROUPS) for name in groups.groups if name not in GROUPS]
            remedy = f"{''.join(hints)}list the devices in groups {', '.join(GROUPS[:4])}"
            problems.append(document.problem((), f"no {kind} in the groups", remedy))
    for name, loc in list(groups.hosts_of(COLLECTOR).items())[1:]:
        problems.append(document.problem(loc, f"{name} is a second collector", "keep one"))
    for name in groups.hosts:
        if name not in result and "closloop_links" in groups.hosts[name]:
            what = f"{name} has links, but is in none of the groups {', '.join(GROUPS[:4])}"
            loc = groups.hosts[name]["closloop_links"]
            problems.append(document.problem(loc, what, "put it in the group of its tier"))
    return result, problems


def _rack_document(groups: Groups, names: tuple[str, ...]) -> Document:
    variables = groups.groups[ALL].variables
    here: Loc = (ALL, "vars") if (ALL, "vars") in groups.document.lines else ()
    return groups.view({n: variables[n] for n in names if n in variables}, here)


def _device_document(groups: Groups, name: str) -> Document:
    merged = groups.merged(name)
    return groups.view({n: merged[n] for n in DEVICE_NAMES if n in merged}, groups.locations[name])


def _device_problems(
    name: str, tier: int | None, variables: DeviceVariables, document: Document
) -> Iterator[Problem]:
    """Yield variables that do not fit a device of that tier.

    `tier` is None for a collector that is not part of the fabric.
    """
    for variable, has, setting in (
        ("closloop_nic", variables.closloop_nic == "roce", "a RoCE NIC"),
        ("closloop_pcc", variables.closloop_pcc, "closloop_pcc"),
    ):
        if tier != 0 and has:
            what = f"{name} is not a host, but has {setting}"
            yield document.problem((variable,), what, f"remove {variable}")
    if variables.closloop_dpu and not variables.closloop_pcc:
        remedy = "add closloop_pcc, the NIC's name in `rdma link`, like mlx5_0"
        yield document.problem(("closloop_dpu",), f"{name}: the NIC is not named", remedy)
    if not tier and variables.closloop_platform != Access.platform:
        title = switch_system(variables.closloop_platform).title
        remedy = "remove closloop_platform, or move the device to the group of its tier"
        yield document.problem(
            ("closloop_platform",), f"{name} is not a switch, but runs {title}", remedy
        )
    if variables.closloop_nic == "roce" and not all(_rdma_devices(variables).values()):
        remedy = "add closloop_rdma_device, its name in `rdma link`, like mlx5_0"
        what = f"{name}: the RDMA device is not named"
        yield document.problem(("closloop_nic",), what, remedy)
    if len(set(variables.closloop_queues)) < len(variables.closloop_queues):
        what = f"{name}: a queue is listed twice"
        yield document.problem(("closloop_queues",), what, "give each class a queue of its own")


def _address_problems(
    devices: Mapping[str, DeviceVariables], documents: Mapping[str, Document]
) -> Iterator[Problem]:
    seen: dict[tuple[str, int], str] = {}
    for name, variables in devices.items():
        key = (variables.ansible_host or name, variables.ansible_port)
        if key in seen:
            what = f"{name} has the same address as {seen[key]}, {key[0]} port {key[1]}"
            yield documents[name].problem(("ansible_host",), what, "correct one of the two")
        seen.setdefault(key, name)


def _named_testbed(named: str, path: Path, document: Document) -> Testbed:
    file = path.parent / split_name(named)[0] if is_path(named) else None
    try:
        return load_testbed(relative_to(str(path.parent), named))
    except InputError as error:
        if file is not None and file.is_file():
            raise
        loc = ("closloop_testbed",)
        if file is None:
            raise InputError(document.at(loc, problem) for problem in error.problems) from None
        what = f"no testbed file {file}"
        remedy = "correct the path, relative to the inventory's folder"
        raise InputError([document.problem(loc, what, remedy, Code.NO_SUCH_FILE)]) from None


def _match_problems(
    groups: Groups, listed: Mapping[str, ListedLinks], testbed: Testbed
) -> list[Problem]:
    """Return where the inventory contradicts `testbed`: variables and devices first, else links."""
    document = _rack_document(groups, FABRIC_NAMES)
    problems = [
        document.problem((name,), f"{name} is given by testbed {testbed.name}", "remove it")
        for name in document.data
    ]
    named = _rack_document(groups, ("closloop_testbed",))
    for device in testbed.devices:
        if device.name not in listed:
            what = f"{device.name} of testbed {testbed.name} is not in the inventory"
            remedy = f"add it to group {GROUPS[device.tier]}"
            problems.append(named.problem(("closloop_testbed",), what, remedy))
    for item in listed.values():
        device_there = testbed.device.get(item.device)
        if device_there is None:
            what = f"testbed {testbed.name} has no device {item.device!r}"
            remedy = f"{suggest(item.device, testbed.device)}use the testbed's names"
            problems.append(item.document.problem((), what, remedy))
        elif device_there.tier != item.tier:
            what = f"{item.device} is in group {GROUPS[item.tier]!r}"
            remedy = f"move it to {GROUPS[device_there.tier]!r}, its tier in {testbed.name}"
            problems.append(item.document.problem((), what, remedy))
    problems = problems or list(agreement_problems(listed, need_rates=False))
    return problems or list(testbed_problems(listed, testbed))


def _built_testbed(
    name: str, document: Document, listed: Mapping[str, ListedLinks]
) -> tuple[Testbed, dict[str, tuple[str, ...]]]:
    """Return the testbed that the listed links define, and its devices' interfaces.

    Raises InputError for links that do not define one.
    """
    named = Document(
        document.name, {**document.data, f"{PREFIX}name": name}, document.lines, document.faults
    )
    file, problems = named.check(FabricVariables)
    if file is not None:
        problems += _fabric_problems(file, document)
    problems += agreement_problems(listed, need_rates=True)
    _raise_if_any(problems or list(reach_problems(listed)))
    assert file is not None  # otherwise there were problems, raised above
    links, interfaces = link_specs(listed)
    testbed = Testbed.build(
        name,
        [Device(n, "switch" if item.tier else "host", item.tier) for n, item in listed.items()],
        links,
        mtu_bytes=file.mtu,
        buffer_bytes=file.buffer,
        framing_bytes=file.framing,
        description=file.description,
        source=file.source,
        classes=file.traffic_classes(),
    )
    return testbed, interfaces


def _fabric_problems(file: FabricVariables, document: Document) -> Iterator[Problem]:
    names = [item.name for item in file.classes]
    if "classes" in file.model_fields_set and not 2 <= len(names) <= MAX_CLASSES:
        remedy = f"list 2 to {MAX_CLASSES}, or leave closloop_classes out"
        what = f"{len(names)} traffic classes"
        yield document.problem(("closloop_classes",), what, remedy)
    if len(set(names)) < len(names):
        what = "two traffic classes have the same name"
        yield document.problem(("closloop_classes",), what, "rename one of the two")
    weights = [item.weight for item in file.classes] or [1]
    minimum = 2 * (file.mtu + ETHERNET_HEADER_BYTES)
    if file.buffer * min(weights) // sum(weights) < minimum:
        buffer = format_size(file.buffer)
        what = f"a queue's part of the buffer of {buffer} holds less than two packets"
        remedy = f"use {-(-minimum * sum(weights) // min(weights))}B or more"
        yield document.problem(("closloop_buffer",), what, remedy)


def _queue_problems(
    devices: Mapping[str, DeviceVariables], documents: Mapping[str, Document], testbed: Testbed
) -> Iterator[Problem]:
    """Yield switches whose number of queues is not the number of traffic classes."""
    for name, variables in devices.items():
        listed, needed = len(variables.closloop_queues), testbed.queues_per_port
        is_linux = switch_system(variables.closloop_platform).is_linux
        if not is_linux and listed != needed:
            what = f"{name} lists {listed} in closloop_queues, but a port needs {needed}"
            remedy = "list the switch's queue number of each traffic class, like [3, 4]"
            yield documents[name].problem(("closloop_queues",), what, remedy)


def _access(name: str, variables: DeviceVariables, interfaces: tuple[str, ...]) -> Access:
    settings = {field: getattr(variables, variable) for variable, field in ACCESS.items()}
    by_interface = _rdma_devices(variables)
    rdma = tuple(by_interface[interface] for interface in interfaces)
    return Access(
        name,
        variables.ansible_host or name,
        interfaces=interfaces,
        rdma_devices=rdma if any(rdma) else (),
        **settings,
    )


def _rdma_devices(variables: DeviceVariables) -> dict[str, str]:
    """Return the RDMA device of each interface: the link's own, or that of the whole device."""
    return {
        link.interface: link.rdma_device or variables.closloop_rdma_device
        for link in variables.closloop_links
    }
