"""The rules of who imports what, and how little the command line loads."""

import json
import subprocess
import sys
from configparser import ConfigParser
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("duckdb", "numpy", "plotly", "pyarrow", "pydantic", "pyroute2", "ruamel", "scipy", "torch")


@pytest.mark.slow
def test_the_import_contracts_are_kept():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout


def import_circle(*packages):
    """Return a circle of modules, each importing the next, or nothing if there is none.

    Imports within functions and under TYPE_CHECKING count: who reads one module needs the other.
    """
    graph = grimp.build_graph(*packages, cache_dir=None, exclude_type_checking_imports=False)
    imported = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def test_no_modules_import_each_other_in_a_circle():
    config = ConfigParser()
    config.read(ROOT / ".importlinter")
    packages = config["importlinter"]["root_packages"].split()
    assert "orchestration" in packages
    circle = import_circle(*packages)
    assert not circle, "move what they share to the lowest of them: " + " -> ".join(circle)


@pytest.mark.parametrize(
    ("device", "through"),
    [
        ("from looped.rack import Rack", []),
        ("import looped.rack", []),
        ("def find():\n    from looped.rack import Rack", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import looped.rack", []),
        ("from looped import links", ["looped.links"]),
    ],
    ids=["from", "import", "in a function", "for types", "through a third"],
)
def test_a_circle_is_found(device, through, tmp_path, monkeypatch):
    package = tmp_path / "looped"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "rack.py").write_text("from looped.device import Device\n")
    (package / "device.py").write_text("import json\n")
    (package / "links.py").write_text("from looped.rack import Rack\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_circle("looped") == []
    (package / "device.py").write_text(f"{device}\n")
    circle = import_circle("looped")
    assert circle[0] == circle[-1]
    start = circle.index("looped.rack")
    from_rack = circle[start:-1] + circle[:start]
    assert from_rack == ["looped.rack", "looped.device", *through]


# typer itself loads pydantic once it reads a verb's options.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [(["--help"], []), (["--version"], []), (["run", "--help"], ["pydantic"])],
    ids=["--help", "--version", "run --help"],
)
def test_help_loads_no_heavy_library(arguments, accepted):
    code = (
        "import sys\n"
        "from orchestration.cli.main import main\n"
        f"sys.argv = ['closloop', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "import json\n"
        f"print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stderr)) <= set(accepted)


def test_a_guest_loads_only_what_a_trial_needs():
    needed = ("guest", "flow_tables", "job", "namespaces", "rig", "traffic")
    modules = [f"orchestration.backends.emulated.{name}" for name in needed]
    code = (
        f"import sys, {', '.join(modules)}, orchestration.session, tuners.registry\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    needless = ("collectors.bpf", "orchestration.kernel", "traffic.patterns")
    assert not [name for name in loaded if name.startswith(needless)]
    assert not {"subprocess", *HEAVY} & set(loaded) - {"numpy"}
