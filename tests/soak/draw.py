"""Small campaigns that a seed draws: any transport, tuner and fault that go together."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

TCP = ("dctcp", "cubic", "reno", "bbr")
ROCE = ("dcqcn", "hpcc", "swift", "timely")
TRANSPORTS = {"emulated": TCP + ROCE, "fluid": ("dctcp",), "simulated": ("dctcp", "cubic", "dcqcn")}
WORKLOADS = ("WebSearch", "FB_Hadoop", "AliStorage2019")


def draw_campaign(dice: random.Random, backend: str, folder: Path) -> Path:
    """Write a campaign and its testbed into a folder; return the campaign's path."""
    transport = dice.choice(TRANSPORTS[backend])
    testbed = _testbed(dice, lossless=transport in ROCE)
    paths = testbed["kind"] == "leaf-spine" and testbed["spines"] > 1
    campaign: dict[str, Any] = {
        "campaign": "soak",
        "testbed": "drawn.yml",
        "backend": backend,
        "host": {"congestion_control": transport},
        "tuners": _tuners(dice),
        "traffic": [_pattern(dice) for _ in range(dice.randint(1, 2))],
        "repeats": dice.randint(1, 3),
        "seed": dice.randint(0, 10**6),
        "duration": f"{dice.randint(5, 25) * 100}us",
        "drain": "100ms",
        "sample_period": dice.choice(["50us", "100us"]),
    }
    if paths and backend != "fluid" and dice.random() < 0.4:
        kinds = ["ecmp", "spray", {"kind": "flowlets", "timeout": "50us"}]
        campaign["load_balancing"] = dice.choice(kinds)
    if paths and dice.random() < 0.3:
        times = {"down": "200us", "up": "400us", "convergence": "100us"}
        campaign["faults"] = [{"links": ["leaf1-spine1"], **times}]
    _write(folder / "drawn.yml", testbed)
    _write(folder / "soak.yml", campaign)
    return folder / "soak.yml"


def transport_of(file: Path) -> str:
    """Return a drawn campaign's congestion control."""
    host = YAML(typ="safe").load(file)["host"]
    return str(host["congestion_control"])


def _testbed(dice: random.Random, *, lossless: bool) -> dict[str, Any]:
    link = {"rate": dice.choice(["10Gbps", "25Gbps"]), "delay": "1us"}
    about: dict[str, Any] = {"name": "drawn", "mtu": "1500B", "host_link": link}
    if dice.random() < 0.3:
        about |= {"kind": "single-switch", "hosts": dice.randint(3, 8)}
    else:
        about |= {
            "kind": "leaf-spine",
            "leaves": dice.randint(2, 3),
            "spines": dice.randint(1, 2),
            "hosts_per_leaf": dice.randint(2, 4),
            "uplink": {"rate": dice.choice(["25Gbps", "40Gbps", "100Gbps"]), "delay": "1us"},
        }
    if lossless:
        return {**about, "switch": {"buffer": "4MB", "alpha": "1/8", "pfc": [3]}}
    return {**about, "buffer": dice.choice(["500KB", "2MB", "16MB"])}


def _tuners(dice: random.Random) -> list[Any]:
    kmin = dice.choice([5, 20, 80])
    static = {"name": "static", "kmin_bytes": f"{kmin}KB", "kmax_bytes": f"{4 * kmin}KB"}
    known = [
        "secn1",
        "secn2",
        "amt",
        "qaecn",
        "acc",
        "pet",
        "graphcc",
        {"name": "random", "of": "acc"},
    ]
    return [static, *dice.sample(known, dice.randint(1, 2))]


def _pattern(dice: random.Random) -> dict[str, Any]:
    load = round(dice.uniform(0.1, 0.6), 2)
    return dice.choice(
        [
            {"kind": "poisson", "workload": dice.choice(WORKLOADS), "load": load},
            {"kind": "incast", "fan_in": 2, "size": "64KB", "period": "500us"},
            {"kind": "message-mix", "load": load, "sizes": ["1KB", "30KB", "200KB"]},
            {"kind": "all-to-all", "size": "4KB", "period": "500us"},
        ]
    )


def _write(path: Path, data: object) -> None:
    """Write data as YAML that closloop's strict reader takes: quoted text is not a number."""
    yaml = YAML()
    yaml.default_flow_style = None
    with path.open("w") as out:
        yaml.dump(json.loads(json.dumps(data)), out)
