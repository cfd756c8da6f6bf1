"""A testbed as JSON, for run folders and simulated machines, which do not have its file."""

from __future__ import annotations

import dataclasses
from typing import Any

from orchestration.core.parts import SwitchSpec
from orchestration.core.topology import Device, Link, Port, Testbed, TrafficClass


def testbed_to_json(testbed: Testbed) -> dict[str, Any]:
    """Return the testbed as JSON-ready data: one list of values per device, link or port.

    Traffic classes and the switches' shared buffer are included if the testbed has them.
    """
    classes = {"classes": _rows(TrafficClass, testbed.classes)} if testbed.classes else {}
    switch = {"switch": dataclasses.asdict(testbed.switch)} if testbed.switch else {}
    return {
        "name": testbed.name,
        "source": testbed.source,
        "mtu_bytes": testbed.mtu_bytes,
        "framing_bytes": testbed.framing_bytes,
        "devices": _rows(Device, testbed.devices),
        "links": _rows(Link, testbed.links),
        "ports": _rows(Port, testbed.ports),
        **classes,
        **switch,
    }


def testbed_from_json(data: dict[str, Any]) -> Testbed:
    """Rebuild a testbed from `testbed_to_json`'s data.

    Raises KeyError, TypeError or ValueError for data that is not a testbed's.
    """
    return Testbed(
        name=data["name"],
        source=data["source"],
        mtu_bytes=data["mtu_bytes"],
        framing_bytes=data["framing_bytes"],
        devices=tuple(Device(**row) for row in _dicts(data["devices"])),
        links=tuple(Link(**row) for row in _dicts(data["links"])),
        ports=tuple(Port(**row) for row in _dicts(data["ports"])),
        classes=tuple(TrafficClass(**row) for row in _dicts(data["classes"]))
        if "classes" in data
        else (),
        switch=_switch(data["switch"]) if "switch" in data else None,
    )


def _switch(data: dict[str, Any]) -> SwitchSpec:
    lists = ("alpha", "lossless", "priorities")
    return SwitchSpec(**{**data, **{name: tuple(data[name]) for name in lists}})


def _rows(cls: type[Any], items: tuple[Any, ...]) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(cls)]
    return {
        "fields": fields,
        "rows": [[getattr(item, name) for name in fields] for item in items],
    }


def _dicts(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["fields"], row, strict=True)) for row in table["rows"]]
