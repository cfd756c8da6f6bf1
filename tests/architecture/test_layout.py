"""The layout of the house: which package stands on which floor, and what imports what.

Read from the sources alone (imports.py, calls.py). Each rule is shown to fail on a made-up tree.
`python tests/architecture/imports.py` and `calls.py` print the figures of today's tree.
"""

import re
from itertools import pairwise

import pytest
from calls import floor_of, walk
from graphs import circles
from imports import package_chain, package_of, sources

# The packages from the ground up: each imports only what stands on a floor below its own. No row
# is to be added: a package stands as low as it can.
FLOORS = (
    ("orchestration", "orchestration.core", "playbooks"),
    ("inventory", "orchestration.agent", "orchestration.loop", "orchestration.render", "tuners"),
    ("collectors", "orchestration.device", "orchestration.results"),
    (
        "orchestration.datapath",
        "orchestration.kernel",
        "orchestration.policies",
        "orchestration.session",
        "traffic",
    ),
    ("orchestration.analysis", "orchestration.backends", "orchestration.campaign"),
    ("orchestration.run",),
    ("orchestration.cli", "orchestration.cluster", "orchestration.environment"),
    (
        "closloop",
        "orchestration.calibration",
        "orchestration.exchange",
        "orchestration.papers",
        "orchestration.provision",
        "orchestration.replay",
        "orchestration.search",
        "orchestration.telemetry",
        "orchestration.training",
        "orchestration.virtual_rack",
        "orchestration.watch",
    ),
    ("orchestration.bench", "orchestration.counterfactuals"),
)

# What stands beside the core, which never imports it. Verbs, executors, sinks and the like of these
# packages are found through entry points, as a plug-in's are.
SIDE = frozenset(
    f"orchestration.{name}"
    for name in (
        *("bench", "calibration", "cluster", "counterfactuals", "environment", "exchange"),
        *("papers", "provision", "replay", "search", "telemetry", "training", "virtual_rack"),
        "watch",
    )
)
# The public API offers the learning environment under its own name.
MAY_NAME_SIDE = {("closloop", "orchestration.environment")}

MAX_IMPORTS = 20
# Modules that import more of ours: each number may only get smaller, and the list only shorter.
KNOWN_IMPORTS: dict[str, int] = {}

# As imports.py counts; the rows of FLOORS are what it is with the other folders counted, too.
LONGEST_CHAIN = 8

# A campaign on its way through `closloop run`, as calls.py counts.
WALK = ("orchestration.cli.run", "RunOptions.run", "campaign")
MAX_MODULES, MAX_UPWARD = 15, 3


def misplaced(of, floors=FLOORS):
    """Return the imports that do not lead down, and the packages that are on no floor or on two."""
    rows = [package for floor in floors for package in floor]
    floor = {package: number for number, row in enumerate(floors, 1) for package in row}
    wrong = [f"{one} is listed twice" for one in sorted(set(rows)) if rows.count(one) > 1]
    wrong += [f"{one} is on no floor" for one in sorted(of.packages.keys() - floor.keys())]
    wrong += [f"{one} is not there" for one in sorted(floor.keys() - of.packages.keys())]
    for one in of.imports:
        above, below = package_of(one.importer), package_of(one.imported)
        if above != below and not floor.get(above, 0) > floor.get(below, 0):
            wrong.append(f"{one}: floor {floor.get(above)} to {floor.get(below)}")
    return wrong


def importing_too_many(of, maximum=MAX_IMPORTS, known=KNOWN_IMPORTS):
    """Return the modules that import too many of ours, and the known ones that no longer do."""
    wrong = [
        f"{module} imports {count} of ours, of at most {known.get(module, maximum)}: "
        + ", ".join(sorted(of.modules[module]))
        for module, count in of.counts.items()
        if count > known.get(module, maximum)
    ]
    return wrong + [
        f"{module} imports {of.counts.get(module, 0)} of ours: take it off the list of known ones"
        for module in known
        if of.counts.get(module, 0) <= maximum
    ]


def naming_side(of, side=SIDE, accepted=frozenset()):
    """Return where the core imports what stands beside it, or names a module of that in a text."""
    return [
        str(one)
        for one in (*of.imports, *of.named)
        if package_of(one.importer) not in side
        and package_of(one.imported) in side
        and (package_of(one.importer), package_of(one.imported)) not in accepted
    ]


def leading_nowhere(of):
    """Return the entry points whose module or object is not there."""
    return [
        f"{group}: {name} = {target}"
        for group, name, target in of.entry_points
        if not of.defines(*target.split(":"))
    ]


def listed(wrong):
    """Return what a failing test says, a line each."""
    return "\n".join(map(str, wrong))


def test_imports_lead_down():
    wrong = misplaced(sources())
    assert not wrong, listed(wrong)


def test_no_modules_import_each_other_in_a_circle():
    wrong = [" -> ".join(circle) for circle in circles(sources().modules)]
    assert not wrong, f"move what they share to the lowest of them:\n{listed(wrong)}"


def test_no_packages_import_each_other_in_a_circle():
    of = sources()
    pairs = [pair for circle in circles(of.packages) for pair in pairwise(circle)]
    wrong = [one for pair in pairs for one in of.ties(*pair)[:3]]
    assert not wrong, f"these imports make a circle of packages:\n{listed(wrong)}"


def test_no_module_imports_more_than_twenty_of_ours():
    wrong = importing_too_many(sources())
    assert not wrong, listed(wrong)


def test_the_core_imports_nothing_of_what_stands_beside_it():
    wrong = naming_side(sources(), accepted=MAY_NAME_SIDE)
    assert not wrong, listed(wrong)


def test_entry_points_lead_to_what_is_there():
    assert len(sources().entry_points) > 1
    wrong = leading_nowhere(sources())
    assert not wrong, listed(wrong)


def test_no_chain_of_packages_is_longer_than_eight():
    chain = package_chain(sources())
    assert len(chain) <= LONGEST_CHAIN, " > ".join(chain)


def test_a_campaign_enters_few_modules_on_its_way_and_is_seldom_taken_up_again():
    of = sources()
    way, floor = walk(of, *WALK), floor_of(of)
    assert len(way.modules) <= MAX_MODULES, way.in_words(floor)
    assert len(way.upward(floor)) <= MAX_UPWARD, way.in_words(floor)


# The rules, and how they count, on made-up trees.


LATER = {
    "from": "from {0} import {1}",
    "import": "import {0}.{1}",
    "in a function": "def late():\n    from {0} import {1}",
    "in a method": "class A:\n    def late(self):\n        import {0}.{1}",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {0}.{1}",
    "if it can be": "try:\n    import json\nexcept ImportError:\n    import {0}.{1}",
}


@pytest.mark.parametrize("text", LATER.values(), ids=LATER)
def test_an_import_up_is_found(made, text):
    floors = (("inventory",), ("traffic",))
    files = {"traffic/flows.py": "import inventory.rack", "inventory/rack.py": ""}
    assert not misplaced(made(files), floors)
    files["inventory/rack.py"] = text.format("traffic", "flows")
    (wrong,) = misplaced(made(files), floors)
    assert re.fullmatch(r"inventory\.rack:\d -> traffic\.flows \(\w+\): floor 1 to 2", wrong)


def test_an_import_on_the_same_floor_leads_not_down(made):
    of = made({"traffic/flows.py": "import inventory.rack", "inventory/rack.py": ""})
    assert len(misplaced(of, (("inventory", "traffic"),))) == 1


def test_a_package_has_one_floor(made):
    of = made({"orchestration/loop.py": "", "orchestration/run/runner.py": ""})
    rows = (("orchestration", "orchestration.loop"), ("orchestration.loop", "orchestration.old"))
    assert misplaced(of, rows) == [
        "orchestration.loop is listed twice",
        "orchestration.run is on no floor",
        "orchestration.old is not there",
    ]


@pytest.mark.parametrize("text", LATER.values(), ids=LATER)
@pytest.mark.parametrize("through", [False, True], ids=["at once", "through a third"])
def test_a_circle_is_found(made, text, through):
    files = {
        "inventory/rack.py": "from inventory.device import Device",
        "inventory/links.py": "from inventory.rack import Rack",
        "inventory/device.py": "import json",
    }
    assert not circles(made(files).modules)
    text = text.format("inventory", "links" if through else "rack")
    names = ["device", *(["links"] if through else []), "rack", "device"]
    (circle,) = circles(made(files | {"inventory/device.py": text}).modules)
    assert circle == [f"inventory.{name}" for name in names]


def test_a_circle_of_packages_needs_none_of_modules(made):
    of = made(
        {
            "orchestration/run/runner.py": "import orchestration.results.tables",
            "orchestration/run/names.py": "",
            "orchestration/results/tables.py": "",
            "orchestration/results/old.py": "import orchestration.run.names",
        }
    )
    assert not circles(of.modules)
    (circle,) = circles(of.packages)
    assert circle == ["orchestration.results", "orchestration.run", "orchestration.results"]
    assert [str(one) for one in of.ties("orchestration.results", "orchestration.run")] == [
        "orchestration.results.old:1 -> orchestration.run.names (top)"
    ]


def test_a_front_door_counts_once(made):
    of = made(
        {
            "inventory/links.py": "",
            "inventory/names.py": "class Rack: ...\nclass names: ...",
            "inventory/__init__.py": "from inventory.names import Rack, names",
            "traffic/flows.py": "from inventory import Rack, names\nfrom inventory import links",
        }
    )
    assert of.modules["traffic.flows"] == {"inventory", "inventory.links"}
    assert of.modules["inventory"] == {"inventory.names"}


def test_too_many_imports_are_found_however_they_are_written(made):
    files = {f"inventory/{name}.py": "" for name in "abc"}
    text = (
        "import inventory.a\ndef late():\n    from inventory.b import x, y\n    import inventory.a"
    )
    of = made(files | {"traffic/flows.py": text})
    assert not importing_too_many(of, 2, {})
    assert importing_too_many(of, 1, {}) == [
        "traffic.flows imports 2 of ours, of at most 1: inventory.a, inventory.b"
    ]
    assert not importing_too_many(of, 1, {"traffic.flows": 2})
    text += "\n    from . import more\n    from inventory import c"
    of = made(files | {"traffic/flows.py": text, "traffic/more.py": ""})
    (wrong,) = importing_too_many(of, 1, {"traffic.flows": 2})
    assert wrong.startswith("traffic.flows imports 4 of ours, of at most 2: ")
    (stale,) = importing_too_many(of, 4, {"traffic.flows": 5})
    assert stale.startswith("traffic.flows imports 4 of ours: take it off")


@pytest.mark.parametrize(
    "text",
    [
        *(text.format("orchestration.bench", "tasks") for text in LATER.values()),
        "from importlib import import_module\nimport_module('orchestration.bench.tasks')",
        "TABLE = {'bench': 'orchestration.bench.tasks:Task'}",
        "def load(name):\n    return __import__(f'orchestration.bench.{name}')",
    ],
    ids=[*LATER, "by its name", "in a table", "by a part of its name"],
)
def test_a_core_that_knows_a_side_package_is_found(made, text):
    side = {"orchestration.bench"}
    files = {
        "orchestration/bench/tasks.py": "import orchestration.run.runner",
        "orchestration/run/runner.py": '"orchestration.bench.tasks is not imported"',
    }
    assert not naming_side(made(files), side)
    of = made(files | {"orchestration/run/runner.py": text})
    (wrong,) = naming_side(of, side)
    assert wrong.startswith("orchestration.run.runner:")
    assert not naming_side(of, side, {("orchestration.run", "orchestration.bench")})


def test_an_entry_point_that_leads_nowhere_is_found(made):
    text = """
        [project.scripts]
        closloop = "orchestration.cli.main:main"
        [project.entry-points."closloop.verbs"]
        bench = "orchestration.bench:VERBS"
        papers = "orchestration.papers:VERBS"
        core = "orchestration.cli:VERBS"
    """
    of = made(
        {
            "pyproject.toml": text,
            "orchestration/bench/__init__.py": "VERBS = ()",
            "orchestration/cli/main.py": "def main(): ...",
        }
    )
    assert leading_nowhere(of) == [
        "closloop.verbs: papers = orchestration.papers:VERBS",
        "closloop.verbs: core = orchestration.cli:VERBS",
    ]


def test_other_folders_link_a_chain_and_do_not_count(made):
    of = made(
        {
            "orchestration/run/runner.py": "import traffic.flows",
            "traffic/flows.py": "import orchestration.results.tables",
            "orchestration/results/tables.py": "import orchestration.core.units",
            "orchestration/core/units.py": "",
        }
    )
    results_down = ["orchestration.results", "orchestration.core"]
    assert package_chain(of) == ["orchestration.run", *results_down]
    assert package_chain(of, through_others=False) == results_down
    assert floor_of(of)("orchestration.run.runner") == 4
