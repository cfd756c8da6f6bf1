"""What runs on devices, run by the oldest Python that they may have."""

import ast
import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestration.agent import OLDEST_PYTHON, SERVICES
from orchestration.agent.main import Decoder, encode
from orchestration.agent.senders.connections import Flows, Service
from orchestration.core.status import DONE
from orchestration.device.bundle import STARTED, STARTER, program, sources

pytestmark = pytest.mark.oldest_python

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
# The library's modules that the text uses, and what it uses of them, are looked up there.
LOOK_UP = """
import importlib, json, sys
for module, name in json.load(sys.stdin):
    try:
        getattr(importlib.import_module(module), name)
    except AttributeError:
        try:
            importlib.import_module(module + "." + name)
        except ImportError:
            print(module, name)
"""
# Ansible's setting `module_utils`, then each of our modules without its main().
IMPORT_MODULES = """
import glob, runpy, sys
site, playbooks = sys.argv[1:]
sys.path.append(site)
import ansible.module_utils
ansible.module_utils.__path__ += [playbooks + "/module_utils", playbooks + "/../orchestration"]
for path in sorted(glob.glob(playbooks + "/library/*.py")):
    runpy.run_path(path)
    print(path)
"""


class Running:
    """An agent in a process of its own on this machine."""

    def __init__(self, process):
        self._process, self._decoder = process, Decoder()
        self.messages = []

    def until(self, found):
        """Return the first message for which this is true."""
        while True:
            for message in self.messages:
                if found(message):
                    self.messages.remove(message)
                    return message
            piece = self._process.stdout.read1(65_536)
            assert piece, self._process.stderr.read()
            self.messages += self._decoder.feed(piece)

    def call(self, op, **arguments):
        self._process.stdin.write(encode({"id": op, "op": op, **arguments}))
        self._process.stdin.flush()
        answer = self.until(lambda message: message.get("id") == op)
        assert "error" not in answer, answer
        return answer["ok"]


@contextmanager
def shipped(python, services):
    command = [python, "-c", STARTER]
    process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1)
    with process:
        assert STARTED.fullmatch(process.stdout.readline())
        process.stdin.write(program())
        process.stdin.flush()
        agent = Running(process)
        agent.until(lambda message: message.get("event") == "ready")
        agent.about = agent.call("hello", services=services)
        yield agent
        process.stdin.close()
        assert process.wait(60) == 0


def test_the_shipped_program_serves_all_that_needs_no_rights(oldest_python):
    with shipped(oldest_python, list(SERVICES)) as agent:
        assert agent.about["python"].startswith(".".join(map(str, OLDEST_PYTHON)))
        assert agent.call("survey", interfaces=["lo"])["interfaces"]["lo"]["exists"]
        asked = {"interfaces": ["lo"], "sysctls": ["net/ipv4/tcp_ecn"]}
        snapshot = agent.call("state.snapshot", **asked)
        assert agent.call("state.restore", snapshot=snapshot)["changed"] == []
        assert agent.call("reach", own=["127.0.0.1"], others=["127.0.0.1"])["own"]
        assert agent.call("links.read", interfaces=["lo"])["lo"][0] == 1
        assert len(agent.call("tcp.counters")) == 4
        assert agent.call("nic.gids") == []
        # a machine has one timer: that of a test beside this one may be armed
        assert "armed" in agent.call("deadman.status")
        assert agent.call("policy.status")["stack"] == []
        agent.call("program.start", program="echo", argv=["echo", "there"])
        agent.until(lambda message: message.get("event") == "program.ended")
        assert agent.call("program.collect", program="echo")["stdout"] == "there\n"


def test_two_of_them_send_flows_to_each_other(oldest_python):
    near = [("127.0.0.1", 46_000), ("127.0.0.1", 46_001)]
    far = [("127.0.0.1", 45_001), ("127.0.0.1", 45_000)]
    service = [Service(1), Service(0)]
    flows = Flows([0, 10**6], [10**6, 2000], [0, 1], [1, 0], near, far, service)
    with shipped(oldest_python, ["sender"]) as one, shipped(oldest_python, ["sender"]) as other:
        agents = (one, other)
        for host, agent in enumerate(agents):
            data = flows.to_json(range(len(flows)))
            agent.call("flows.load", flows=data, host=host, end_ns=20 * 10**9)
        for step in ("listen", "connect", "accept"):
            for agent in agents:
                agent.call(f"flows.{step}")
        for agent in agents:
            agent.call("flows.go", t0_ns=time.monotonic_ns() + 10**8)
        for host, agent in enumerate(agents):
            ended = agent.until(lambda message: message.get("event") == "flows.ended")
            assert ended == {"event": "flows.ended", "done": 1}
            assert agent.call("flows.results")["status"][host] == DONE


def used(text):
    """Yield (module, name) for what a text uses of modules that it imports absolutely."""
    tree, modules = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {(alias.asname or alias.name): alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from ((name, node.attr) for name in [modules.get(node.value.id)] if name)


def missing(python, texts):
    found = sorted({pair for text in texts for pair in used(text)})
    found = [pair for pair in found if pair[0].partition(".")[0] in sys.stdlib_module_names]
    done = subprocess.run(
        [python, "-c", LOOK_UP], input=json.dumps(found), capture_output=True, text=True, check=True
    )
    return done.stdout.split("\n")[:-1]


def test_its_library_has_every_name_that_is_used(oldest_python):
    texts = [*sources().values(), *(path.read_text() for path in PLAYBOOKS.rglob("*.py"))]
    # calculates digests for the controller only
    assert missing(oldest_python, texts) == ["hashlib file_digest"]


def test_a_newer_name_is_found(oldest_python):
    text = "import os, itertools as i\nfrom typing import Self\ni.batched(os.listdir('/'), 2)"
    assert missing(oldest_python, [text]) == ["itertools batched", "typing Self"]


def test_it_imports_ansibles_modules(oldest_python):
    ansible = pytest.importorskip("ansible")
    site = Path(ansible.__file__).parents[1]
    done = subprocess.run(
        [oldest_python, "-c", IMPORT_MODULES, str(site), str(PLAYBOOKS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(list((PLAYBOOKS / "library").glob("*.py")))
