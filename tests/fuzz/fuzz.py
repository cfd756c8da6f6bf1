"""Fuzz the readers of foreign input: `make fuzz INPUTS=100000`, or one of them by name.

    python tests/fuzz/fuzz.py redis --inputs 100000

An input fails if it raises what its target may not raise, takes more than a second, or leaves a
file. It is kept in tests/fuzz/found/<target>/, which the tests play from then on. Needs atheris.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import atheris

SLOW_S = 1.0
_LONGEST_BYTES = 8_192


def _fuzz(name: str, inputs: int, seconds: int, seed: int) -> None:
    """Run libFuzzer in this process, which it ends."""
    with atheris.instrument_imports(include=["inventory", "orchestration", "traffic"]):
        from targets import FOUND, TARGETS, check

    scratch = Path(tempfile.mkdtemp(prefix="closloop-fuzz-"))
    corpus, work, own = (scratch / part for part in ("corpus", "work", "tmp"))
    for folder in (corpus, work, own):
        folder.mkdir()
    tempfile.tempdir = str(own)
    for number, data in enumerate(TARGETS[name].begins()):
        (corpus / str(number)).write_bytes(data)

    def one(data: bytes) -> None:
        begin = time.perf_counter()
        check(name, data, work)
        took_s = time.perf_counter() - begin
        assert took_s <= SLOW_S, f"it takes {took_s:.1f} s"
        assert not os.listdir(own), "it leaves a temporary file"
        for path in work.iterdir():
            path.unlink()

    kept = FOUND / name
    kept.mkdir(parents=True, exist_ok=True)
    options = [
        f"-runs={inputs}",
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={_LONGEST_BYTES}",
        f"-artifact_prefix={kept}/",
        "-rss_limit_mb=4096",
        "-timeout=30",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    """Fuzz the named targets, one process each, and say how each ended."""
    shown = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("targets", nargs="*", help="names in targets.py; default: all")
    parser.add_argument("--inputs", type=int, default=10_000, help="of each target")
    parser.add_argument(
        "--seconds", type=int, default=0, help="of each target at most; 0: no limit"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        _fuzz(asked.targets[0], asked.inputs, asked.seconds, asked.seed)
    from targets import TARGETS

    names = asked.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target is called {unknown[0]}")
    failed = []
    for name in names:
        limits = ["--inputs", str(asked.inputs), "--seconds", str(asked.seconds)]
        command = [sys.executable, __file__, name, "--alone", *limits, "--seed", str(asked.seed)]
        with tempfile.TemporaryDirectory(prefix="closloop-fuzz-") as folder:
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env={**os.environ, "TMPDIR": folder},
            )
        played = [line for line in ran.stderr.splitlines() if "number_of_executed_units" in line]
        print(f"{name}: {played[0].split()[-1] if played else 'no'} inputs, ", end="")
        print("nothing found" if ran.returncode == 0 else "FAILED", flush=True)
        if ran.returncode:
            failed.append(name)
            print("\n".join((ran.stdout + ran.stderr).splitlines()[-40:]))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
