"""The agent is one package of the standard library that every device's Python can read."""

import ast
import sys
from pathlib import Path

import pytest

from orchestration import agent
from orchestration.device.bundle import sources

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "playbooks"
# What Ansible's modules import besides the standard library: Ansible's own, ours, and the agent.
UTILS = "ansible.module_utils"
OF_MODULES = tuple(f"{UTILS}.{name}" for name in ("basic", "closloop", "agent", "core.files"))


def imports(name, source):
    """Yield what a module imports, by absolute name, and whether it is written relatively.

    Imports for type checkers count too: who reads the agent needs what they name.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module, False
        elif isinstance(node, ast.ImportFrom):
            # a package's own name counts as a level
            inner = [*name.split("."), "__init__"] if is_package(name) else name.split(".")
            yield ".".join([*inner[: -node.level], *filter(None, [node.module])]), True


def is_package(name):
    return ROOT.joinpath(*name.split("."), "__init__.py").is_file()


def is_standard(name):
    return name.partition(".")[0] in sys.stdlib_module_names


def strangers(name, source):
    """Return the imports of an agent's module that are neither the library's nor the agent's."""
    core = {f"orchestration.core.{one}" for one in agent.FROM_CORE}
    found = []
    for imported, relative in imports(name, source):
        inside = imported == agent.__name__ or imported.startswith(f"{agent.__name__}.")
        if not (relative and (inside or imported in core)) and not is_standard(imported):
            found.append(imported)
    return found


def test_the_agent_imports_the_standard_library_and_itself():
    found = {name: bad for name, text in sources().items() if (bad := strangers(name, text))}
    assert not found, "what runs on devices is orchestration.agent, by relative imports"


def test_what_it_takes_of_the_core_imports_nothing_of_ours():
    for name in agent.FROM_CORE:
        text = (ROOT / "orchestration" / "core" / f"{name}.py").read_text()
        assert all(is_standard(one) for one, _ in imports(f"orchestration.core.{name}", text))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import numpy", ["numpy"]),
        ("def late():\n    import numpy", ["numpy"]),
        ("from inventory.rack import Access", ["inventory.rack"]),
        ("from orchestration.agent.main import Agent", ["orchestration.agent.main"]),
        ("from ...core.records import Schedule", ["orchestration.core.records"]),
        ("from ...core.files import write_whole\nfrom .. import main\nimport os", []),
    ],
)
def test_a_stranger_is_found(line, found):
    assert strangers("orchestration.agent.linux.netlink", line) == found


def test_its_program_has_all_its_modules_and_services():
    home = ROOT / "orchestration" / "agent"
    modules = {name for name in sources() if name.startswith(agent.__name__)}
    assert len(modules) == len(list(home.rglob("*.py")))
    for module in agent.SERVICES.values():
        tree = ast.parse(sources()[f"{agent.__name__}.{module}"])
        defined = {item.name for item in tree.body if isinstance(item, ast.FunctionDef)}
        assert "operations" in defined, module


def on_devices():
    """Return the texts of all that devices run: the agent, and Ansible's modules."""
    paths = [path for path in PLAYBOOKS.rglob("*.py") if "doc_fragments" not in path.parts]
    return {**sources(), **{str(path.relative_to(ROOT)): path.read_text() for path in paths}}


def test_the_oldest_python_can_parse_what_devices_run():
    for name, text in on_devices().items():
        ast.parse(text, name, feature_version=agent.OLDEST_PYTHON)
        # which that does not tell of
        assert not any(
            isinstance(node, ast.keyword) and node.arg == "strict"
            for node in ast.walk(ast.parse(text))
        ), f"{name}: zip(strict=) came with Python 3.10"


def test_ansibles_modules_import_the_standard_library_and_the_agent():
    for path in PLAYBOOKS.rglob("*.py"):
        for name, _ in imports(path.stem, path.read_text()):
            known = is_standard(name) or name.startswith(OF_MODULES)
            assert known, f"{path.name} imports {name}"
