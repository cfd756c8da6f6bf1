"""Runs a campaign whose trials after the first repeat never end: something to interrupt.

    run_slowly.py CAMPAIGN OUT

Each endless trial starts a child, as the emulated backend does, and notes both numbers in OUT.pids.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from orchestration.backends.fluid.backend import FluidBackend
from orchestration.campaign.expand import load_campaign
from orchestration.cli.display import open_display
from orchestration.core.errors import Interrupted
from orchestration.run.runner import run_campaign

PR_SET_PDEATHSIG = 1


class Endless(FluidBackend):
    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def run(self, run):
        if run.trial.repeat > 1:
            child = subprocess.Popen(["sleep", "1000"], preexec_fn=die_with_parent)
            with self.notes.open("a") as notes:
                notes.write(f"{os.getpid()} {child.pid}\n")
            while True:
                time.sleep(0.01)
                run.progress(0, run.trial.duration_ns)
        return super().run(run)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(campaign: str, out: str) -> None:
    backend = Endless(Path(f"{out}.pids"))
    try:
        with open_display("slow") as display:
            run_campaign(load_campaign(campaign), backend, Path(out), 2, display)
    except Interrupted as interruption:
        print(interruption, file=sys.stderr)
        sys.exit(interruption.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
