"""Campaigns with files of their own for tests of the cluster, and what must be the same."""

import json
import time
from contextlib import suppress
from pathlib import Path

from tests.testbeds import single_switch

PATIENCE_S = 240.0
# How long things took, which no two runs have in common.
OF_THE_CLOCK = {"wall_s", "started_ns", "stages_s"}

TUNER = """\
import time
from dataclasses import dataclass

from closloop import BaseTuner
from tuners.ecn.static import Secn1


@dataclass(eq=False)
class Slow(BaseTuner):
    nap_s: float = 0.0

    def reset(self, testbed, seed):
        time.sleep(self.nap_s)
        return Secn1().reset(testbed, seed)
"""
TESTBED = single_switch(
    "five", 5, "25Gbps", description="5 hosts, one switch", source="none", buffer="4MB"
)
WORKLOAD = "bytes,cdf\n1000,0\n20000,0.6\n100000,1\n"
CAMPAIGN = """\
campaign: tiny
testbed: five.yml
backend: BACKEND
tuners: [secn1, {name: "mine.py:Slow", nap_s: NAP}]
traffic:
  - {kind: incast, fan_in: 4, size: 64KB, period: 500us}
  - {kind: poisson, workload: table.csv, load: 0.3}
repeats: REPEATS
duration: 1ms
drain: 20ms
"""


def write_campaign(folder, repeats=2, nap_s=0.0, backend="fluid"):
    """Write a campaign with a tuner, a testbed and a workload of one's own; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(TUNER)
    (folder / "five.yml").write_text(TESTBED)
    (folder / "table.csv").write_text(WORKLOAD)
    text = CAMPAIGN.replace("REPEATS", str(repeats)).replace("NAP", str(nap_s))
    path = folder / "tiny.yml"
    path.write_text(text.replace("BACKEND", backend))
    return path


def processes(*words):
    """Return the ids of the processes whose command lines have all words, as text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if all(word.encode() in path.read_bytes() for word in words):
                found.append(path.parent.name)
    return found


def environment(pid):
    """Return the environment variables that a process was started with."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return {}
    return dict(word.decode(errors="replace").split("=", 1) for word in words if b"=" in word)


def until(true, what):
    """Wait until a function returns something, and return that."""
    end = time.monotonic() + PATIENCE_S
    while not (result := true()):
        assert time.monotonic() < end, f"waited too long until {what}"
        time.sleep(0.1)
    return result


def contents(folder):
    """Return the files of finished trials, without what is of the clock alone."""
    return {
        str(path.relative_to(folder)): _content(path)
        for path in sorted(folder.glob("[!.]*/*"))
        if path.is_file()
    }


def _content(path):
    if path.name != "trial.json":
        return path.read_bytes()
    about = json.loads(path.read_text())
    known = {name: value for name, value in about["facts"].items() if not _of_the_clock(name)}
    return {**about, "facts": known}


def _of_the_clock(name):
    return name in OF_THE_CLOCK or name.endswith("wall_s")
