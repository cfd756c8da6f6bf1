"""The bundle: the agent's modules as one program, which imports them from memory.

Python is started on the device with the short program STARTER on its command line. STARTER prints
its name and Python's version, and reads the length of the bundle and the bundle from standard
input; the agent then reads requests from there. Nothing is written to the device's disk.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from functools import cache
from pathlib import Path

from orchestration import agent

_CORE = "orchestration.core"

# The program on the device's command line. Every Python since 2.6 can parse it.
STARTER = (
    "import sys;print('closloop-agent %d.%d'%sys.version_info[:2]);sys.stdout.flush();"
    f"sys.version_info<{agent.OLDEST_PYTHON} and sys.exit();s=sys.stdin.buffer;"
    "exec(compile(s.read(int(s.readline())),'closloop-agent','exec'))"
)
# What the starter prints before it reads.
STARTED = re.compile(rb"closloop-agent (\d+)\.(\d+)\r?\n")

# It does without importlib.abc, which imports many modules that an agent does not need.
_LOADER = """
import base64, json, sys, zlib
from importlib.machinery import ModuleSpec
SOURCES = json.loads(zlib.decompress(base64.b85decode({sources!r})))
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


@cache
def program() -> bytes:
    """Return what is sent to `STARTER`: the bundle's length and the bundle."""
    packed = base64.b85encode(zlib.compress(json.dumps(sources()).encode(), 9)).decode()
    text = _LOADER.format(sources=packed, agent=agent.__name__).encode()
    return f"{len(text)}\n".encode() + text


def sources() -> dict[str, str]:
    """Return source by module name: the agent's modules, and those of the core that it needs."""
    home = Path(agent.__file__).parent
    files = {f"{_CORE}.{name}": home.parent / "core" / f"{name}.py" for name in agent.FROM_CORE}
    for file in home.rglob("*.py"):
        parts = file.relative_to(home).with_suffix("").parts
        inner = parts[:-1] if parts[-1] == "__init__" else parts
        files[".".join((agent.__name__, *inner))] = file
    return {name: file.read_text(encoding="utf-8") for name, file in sorted(files.items())}
