"""The packet engine as AddressSanitizer and UndefinedBehaviorSanitizer watch it.

They must be loaded before Python is: https://github.com/google/sanitizers/wiki/AddressSanitizerAsDso
"""

import os
import shutil
import subprocess
import sys

import pytest

from orchestration.datapath.library import BUILD_VARIABLE


def run_sanitized(code, *arguments):
    """Run Python code in a process that loads the sanitized engine; return the ended process.

    What the sanitizers find ends that process, with a report on its standard error.
    """
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    command = ["gcc", "-print-file-name=libasan.so"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("gcc has no libasan")
    environment = {
        **os.environ,
        BUILD_VARIABLE: "sanitized",
        "CC": "gcc",
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves some memory behind
        "PYTHONMALLOC": "malloc",  # so that reads past NumPy's and Python's blocks are seen, too
    }
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
