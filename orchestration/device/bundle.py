"""Bundle the agent's source as one program: modules that import each other from memory.

Python is started on the device with the short program STARTER on its command line. It names itself
and its version, and reads the length of the bundle and the bundle from standard input; the agent
then reads requests from there. Nothing is written to the device's disk.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

_AGENT = "orchestration.agent"
# The agent's services by name.
SERVICES = {
    **{name: f"{_AGENT}.{name}" for name in ("deadman", "lease", "reach", "state", "survey")},
    "kernel": f"{_AGENT}.linux.kernel",
    "control": f"{_AGENT}.readers.control",
    "flowtable": f"{_AGENT}.readers.flow_table",
    "incast": f"{_AGENT}.senders.frames",
    "markq": f"{_AGENT}.readers.marks",
    "nic": f"{_AGENT}.readers.rdma",
    "paths": f"{_AGENT}.readers.paths",
    "policy": f"{_AGENT}.policies.policy",
    "programs": f"{_AGENT}.senders.programs",
    "redq": f"{_AGENT}.readers.red",
    "sender": f"{_AGENT}.senders.sender",
    "sonic": f"{_AGENT}.sonic.counters",
}
_OURS = ("collectors", "inventory", "orchestration", "traffic", "tuners")

_ONE_AT_A_TIME = Lock()

# The oldest Python that the agent runs on.
OLDEST = (3, 9)
# The whole program on the device's command line. Every Python since 2.6 can parse it.
STARTER = (
    "import sys;print('closloop-agent %d.%d'%sys.version_info[:2]);sys.stdout.flush();"
    f"sys.version_info<{OLDEST} and sys.exit();s=sys.stdin.buffer;"
    "exec(compile(s.read(int(s.readline())),'closloop-agent','exec'))"
)
# What the starter says first, before it reads.
STARTED = re.compile(rb"closloop-agent (\d+)\.(\d+)\r?\n")

# Without importlib.abc, which imports much that an agent does not need.
_LOADER = """
import sys
from importlib.machinery import ModuleSpec
SOURCES = {sources}
class Bundle:
    def find_spec(self, name, path=None, target=None):
        package = any(known.startswith(name + ".") for known in SOURCES)
        if name in SOURCES or package:
            return ModuleSpec(name, self, is_package=package)
        return None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(SOURCES.get(name, ""), name, "exec"), module.__dict__)
sys.meta_path.insert(0, Bundle())
from {agent}.main import main
main()
"""


def program(services: Iterable[str]) -> bytes:
    """Return what to send to `STARTER`: the agent with `services`, by name."""
    # agents are started in parallel, and Python 3.11 cannot parse in two threads at once:
    # https://github.com/python/cpython/issues/106905
    with _ONE_AT_A_TIME:
        return _program(tuple(services))


@cache
def _program(services: tuple[str, ...]) -> bytes:
    sources = sources_of([f"{_AGENT}.main", *modules_of(services)])
    text = _LOADER.format(sources=_literal(sources), agent=_AGENT).encode()
    return f"{len(text)}\n".encode() + text


def modules_of(services: Iterable[str]) -> list[str]:
    """Return the modules of services. Raises ValueError for an unknown service."""
    try:
        return [SERVICES[name] for name in services]
    except KeyError as error:
        raise ValueError(f"the agent has no service {error.args[0]!r}") from error


def sources_of(modules: Iterable[str]) -> dict[str, str]:
    """Return the sources of modules, and of all modules of this project that they import."""
    wanted = list(modules)
    sources: dict[str, str] = {}
    while wanted:
        name = wanted.pop()
        if name not in sources:
            sources[name] = _source(name)
            wanted += _imports(name)
    return dict(sorted(sources.items()))


@cache  # parsing takes most of the time, and services share modules
def _imports(name: str) -> tuple[str, ...]:
    return tuple(_imported(name, _source(name)))


def _imported(name: str, source: str) -> Iterator[str]:
    # only imports at the top level of a module: others are for type checkers or the controller
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ImportFrom):
            above = name.rsplit(".", statement.level)[:1] if statement.level else []
            module = ".".join([*above, *filter(None, [statement.module])])
            if module.partition(".")[0] not in _OURS:
                continue
            for alias in statement.names:
                inner = f"{module}.{alias.name}"
                yield inner if _is_module(inner) else module


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _literal(sources: dict[str, str]) -> str:
    # a JSON object of strings is also a Python literal, in ASCII
    return json.dumps(sources)


@cache
def _source(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"the agent has no service {name!r}")
    return Path(spec.origin).read_text(encoding="utf-8")
