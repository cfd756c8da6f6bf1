"""The rules of who imports what, and how little the command line loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "cffi",
    "duckdb",
    "numpy",
    "plotly",
    "pyarrow",
    "pydantic",
    "pyroute2",
    "ruamel",
    "scipy",
    "torch",
)


@pytest.mark.slow
def test_the_import_contracts_are_kept():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout


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
    needed = ("guest", "job", "namespaces", "rig", "traffic")
    modules = [f"orchestration.backends.emulated.{name}" for name in needed]
    code = (
        f"import sys, {', '.join(modules)}, orchestration.session, tuners.registry\n"
        "from traffic.patterns.poisson import PoissonSpec\n"  # a trial's, as its job has it
        "from orchestration.core import trial\n"
        "from tuners import registry\n"
        "registry.set_entry_points({'secn1': 'tuners.ecn.static:Secn1'})\n"
        "registry.create(trial.TunerSpec('secn1'))\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    needless = ("collectors.bpf", "orchestration.kernel", "traffic.workloads", "importlib.metadata")
    assert not [name for name in loaded if name.startswith(needless)]
    assert not {"importlib.metadata", "subprocess", *HEAVY} & set(loaded) - {"numpy"}
