"""The agent's source as one program: modules that import each other from memory.

The device's Python is started with a few words on its command line, reads this program's length
and then the program from standard input, and goes on reading requests. Nothing is written there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

_AGENT = "orchestration.backends.hardware.agent"
# Modules outside the agent's folder that it may import: standard library only, like it.
SHARED = (
    "orchestration.backends.qdiscs",
    "orchestration.model.status",
    "traffic.drivers.sockets",
)
_ALWAYS = ("frames", "main")

# All that stands on the device's command line.
STARTER = (
    "import sys;s=sys.stdin.buffer;exec(compile(s.read(int(s.readline())),'closloop-agent','exec'))"
)

_LOADER = """
import importlib.abc, importlib.util, sys
SOURCES = {sources}
class Bundle(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        package = any(known.startswith(name + ".") for known in SOURCES)
        if name in SOURCES or package:
            return importlib.util.spec_from_loader(name, self, is_package=package)
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(SOURCES.get(name, ""), name, "exec"), module.__dict__)
sys.meta_path.insert(0, Bundle())
from {agent}.main import main
main()
"""


def program(services: Iterable[str]) -> bytes:
    """Return what to send to `STARTER`: the agent with `services`, modules of its folder."""
    names = [f"{_AGENT}.{name}" for name in (*_ALWAYS, *services)] + list(SHARED)
    sources = {name: _source(name) for name in dict.fromkeys(names)}
    text = _LOADER.format(sources=_literal(sources), agent=_AGENT).encode()
    return f"{len(text)}\n".encode() + text


def _literal(sources: dict[str, str]) -> str:
    # a JSON object of strings is also a Python literal, and ASCII only
    return json.dumps(sources)


def _source(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"the agent has no service {name!r}")
    return Path(spec.origin).read_text(encoding="utf-8")
