"""What is generated for SONiC is valid against its YANG models, of three releases.

The models are no part of closloop: scripts/sonic-yang.sh fetches them. Rows become XML, in which
libyang gives each value its type by the model.
"""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.sonic.configdb import DEFAULTS
from orchestration.agent.sonic.stream import GROUPS, PROFILES
from orchestration.backends.hardware.sonic.config import desired_tables, queue_locations
from orchestration.virtual_rack.layout import Layout
from orchestration.virtual_rack.sonic_model import Traits, config_rows, switch_model

pytestmark = pytest.mark.yang

RELEASES = ("202305", "202505", "202605")
# Testbed, and the queues of its classes.
RACKS = [
    ("graphcc", (3,)),
    ("graphcc", (0,)),
    ("graphcc", (1,)),
    ("acc-fig8", (3, 0)),
    ("acc-fig8", (3, 4)),
    ("acc-fig8", (1, 2)),
]

# Per table: its module, and the leaves in a key, between bars. Maps have the leaves of their pairs.
TABLES = {
    "BUFFER_PG": ("sonic-buffer-pg", ("port", "pg_num")),
    "BUFFER_POOL": ("sonic-buffer-pool", ("name",)),
    "BUFFER_PROFILE": ("sonic-buffer-profile", ("name",)),
    "BUFFER_QUEUE": ("sonic-buffer-queue", ("port", "qindex")),
    GROUPS: ("sonic-high-frequency-telemetry", ("profile_name", "group_name")),
    PROFILES: ("sonic-high-frequency-telemetry", ("name",)),
    "PFC_WD": ("sonic-pfcwd", ("ifname",)),
    "PORT": ("sonic-port", ("name",)),
    "PORT_QOS_MAP": ("sonic-port-qos-map", ("ifname",)),
    "QUEUE": ("sonic-queue", ("ifname", "qindex")),
    "SCHEDULER": ("sonic-scheduler", ("name",)),
    "WRED_PROFILE": ("sonic-wred-profile", ("name",)),
}
MAPS = {
    "DSCP_TO_TC_MAP": ("sonic-dscp-tc-map", "dscp", "tc"),
    "MAP_PFC_PRIORITY_TO_QUEUE": ("sonic-pfc-priority-queue-map", "pfc_priority", "qindex"),
    "TC_TO_PRIORITY_GROUP_MAP": ("sonic-tc-priority-group-map", "tc", "pg"),
    "TC_TO_QUEUE_MAP": ("sonic-tc-queue-map", "tc", "qindex"),
}
# Tables whose rows are containers with names of their own.
NAMED = {
    "DEVICE_METADATA": "sonic-device_metadata",
    "FLEX_COUNTER_TABLE": "sonic-flex_counter",
}


def cache():
    default = Path("~/.cache/closloop/sonic-yang").expanduser()
    return Path(os.environ.get("CLOSLOOP_SONIC_YANG", default))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function that gives the folder of a release's models, templates filled in."""
    jinja2 = pytest.importorskip("jinja2")
    made = {}

    def models(release):
        if release not in made:
            source = cache() / release
            folder = tmp_path_factory.mktemp(release)
            for file in (source / "yang-models").glob("*.yang"):
                (folder / file.name).symlink_to(file)
            loader = jinja2.FileSystemLoader(source / "yang-templates")
            environment = jinja2.Environment(loader=loader, trim_blocks=True, autoescape=False)
            for file in (source / "yang-templates").glob("*.yang.j2"):
                text = environment.get_template(file.name).render(yang_model_type="py")
                (folder / file.stem).write_text(text)
            made[release] = folder
        return made[release]

    return models


def to_xml(tables, folder):
    """Return CONFIG_DB's rows as data of the models in `folder`."""
    root = ElementTree.Element("data")
    modules = {}

    def child(parent, name, text=None):
        found = ElementTree.SubElement(parent, name)
        found.text = text
        return found

    def table(module, name):
        if module not in modules:
            model = (folder / f"{module}.yang").read_text()
            space = re.search(r'namespace\s+"([^"]+)"', model)[1]
            modules[module] = child(root, module)
            modules[module].set("xmlns", space)
        return child(modules[module], name)

    for name, rows in tables.items():
        if name in TABLES:
            module, keys = TABLES[name]
            place = table(module, name)
            for key, row in rows.items():
                entry = child(place, f"{name}_LIST")
                # a field with @ at its end is a list
                names = key.split("|") if len(keys) > 1 else [key]
                for leaf, text in (*zip(keys, names, strict=True), *row.items()):
                    for one in text.split(",") if leaf.endswith("@") else [text]:
                        child(entry, leaf.rstrip("@"), one)
        elif name in MAPS:
            module, left, right = MAPS[name]
            place = table(module, name)
            for key, row in rows.items():
                entry = child(place, f"{name}_LIST")
                child(entry, "name", key)
                for pair in row.items():
                    inner = child(entry, name)
                    child(inner, left, pair[0])
                    child(inner, right, pair[1])
        else:
            place = table(NAMED[name], name)
            for key, row in rows.items():
                entry = child(place, key)
                for leaf, text in row.items():
                    child(entry, leaf, text)
    # modules are top-level nodes
    return "\n".join(ElementTree.tostring(item, encoding="unicode") for item in root)


def problems(tables, folder):
    """Return what libyang finds wrong, "" for nothing."""
    file = folder / "data.xml"
    file.write_text(to_xml(tables, folder))
    # older releases lack some
    modules = sorted({folder / f"{name}.yang" for name in MODULES} & {*folder.glob("*.yang")})
    argv = ["yanglint", "-p", str(folder), "-t", "config", *map(str, modules), str(file)]
    done = subprocess.run(argv, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr or "yanglint failed"


MODULES = (
    {module for module, _ in TABLES.values()}
    | {module for module, _, _ in MAPS.values()}
    | set(NAMED.values())
)


def split(rows):
    tables = {}
    for name, row in rows.items():
        table, _, key = name.partition("|")
        tables.setdefault(table, {})[key] = row
    return tables


def merged(*many):
    """Return tables on top of each other, as rows and fields are written."""
    result = {}
    for tables in many:
        for table, rows in tables.items():
            for key, row in rows.items():
                there = result.setdefault(table, {}).setdefault(key, {})
                there.update(row)
    return result


def load(part):
    """Load a part of the Ansible module that makes rows on the switch."""
    utils = pytest.importorskip("ansible.module_utils")
    root = Path(__file__).resolve().parents[3]
    intern = sys.intern
    utils.__path__ = [
        *utils.__path__,
        str(root / "playbooks/module_utils"),
        str(root / "orchestration"),
    ]
    found = importlib.import_module(f"ansible.module_utils.closloop.{part}")
    # Ansible puts an object there that torch, in the same process here, cannot trace
    sys.intern = intern
    return found


class DynamicSwitch:
    """Redis of a switch that computes its buffers, and has no row for any."""

    def hash(self, _, __):
        return {"buffer_model": "dynamic"}

    def call(self, *_):
        return []


def rack_of(name, queues):
    testbed = load_testbed(name)
    device = testbed.switches[0]
    model = switch_model(Layout(testbed, sonic=(device,)), device, Traits(buffer_model="dynamic"))
    names = tuple(port.name for port in model.ports)
    access = Access(device, "10.0.0.1", platform="sonic", interfaces=names, queues=queues)
    return Rack("rack", testbed, {device: access}), device, model


def stock(model):
    return split(config_rows(model))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("name", "queues"), RACKS)
def test_what_provisioning_and_its_undo_write_is_valid(models, release, name, queues):
    rack, device, model = rack_of(name, queues)
    folder = models(release)
    before = stock(model)
    assert problems(before, folder) == ""
    wanted = desired_tables(rack, device)
    lossless = {port: [n for n in queues if n in (3, 4)] for port in wanted["PORT_QOS_MAP"]}
    before["BUFFER_PG"] = {k: row for k, row in before["BUFFER_PG"].items() if k.endswith("|0")}
    buffers = load("sonic_rows").lossless_rows(DynamicSwitch(), lossless)
    assert len(buffers) == len(lossless) * len([n for n in queues if n in (3, 4)])
    assert problems(merged(before, wanted, split(buffers)), folder) == ""
    assert problems(merged(before, split(DEFAULTS)), folder) == ""


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("table", "key", "field", "value"),
    [
        ("WRED_PROFILE", "AZURE_LOSSLESS", "green_min_threshold", str(2**40)),
        ("QUEUE", "Ethernet0|3", "wred_profile", "NONE"),
        ("PORT_QOS_MAP", "Ethernet0", "pfc_enable", "3;4"),
        ("BUFFER_PG", "Ethernet0|3-4", "profile", "NONE"),
        ("MAP_PFC_PRIORITY_TO_QUEUE", "AZURE", "3", "8"),
        ("TC_TO_QUEUE_MAP", "AZURE", "3", "10"),
        ("FLEX_COUNTER_TABLE", "PORT", "POLL_INTERVAL", "x"),
        ("PFC_WD", "GLOBAL", "POLL_INTERVAL", "99"),
    ],
)
def test_what_is_wrong_is_found_by_the_models(models, release, table, key, field, value):
    _, _, model = rack_of("graphcc", (3,))
    tables = merged(stock(model), {table: {key: {field: value}}})
    assert problems(tables, models(release)) != ""


class StockSwitch:
    """Redis of a switch with some rows."""

    def __init__(self, tables):
        self.tables = tables

    def call(self, _, __, pattern):
        table = pattern.partition("|")[0]
        return [f"{table}|{key}" for key in self.tables.get(table, {})]


@pytest.mark.parametrize(("name", "queues"), RACKS)
def test_rows_that_stream_depths_are_valid(models, name, queues):
    """From 202511 on; the models of 202605 have the counters in cells."""
    rack, device, model = rack_of(name, queues)
    folder, before = models("202605"), stock(model)
    places = [(port, str(queue)) for port, queue, _ in queue_locations(rack, device)]
    rows = load("sonic_rows").stream_rows(StockSwitch(before), places, 1000, "mellanox", True)
    wanted = merged(before, desired_tables(rack, device), split(rows))
    assert problems(wanted, folder) == ""
    for field, value in (("object_names@", "Ethernet999|3"), ("object_counters@", "DEPTH")):
        wrong = merged(wanted, {GROUPS: {"CLOSLOOP|QUEUE": {field: value}}})
        assert problems(wrong, folder) != ""
