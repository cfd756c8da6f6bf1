"""The built kernel: it boots, its clock stands still while it works, and it goes as a wheel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.backends.emulated.kernel.cache import require_kernel
from orchestration.backends.emulated.kernel.check import check_kernel

CLOSLOOP = Path(sys.executable).with_name("closloop")


def test_it_boots_and_keeps_virtual_time():
    report = check_kernel(require_kernel().path)
    # 20,000 system calls take no virtual time but for reading the clock
    assert report.busy_ns < 1_000
    assert report.sleep_ns // 10**9 == 1000
    assert {"dctcp", "cubic"} <= set(report.congestion_controls.split())


def test_where_its_wheel_is_installed_nothing_is_built(tmp_path):
    pytest.importorskip("wheel")
    site, cache = tmp_path / "site", tmp_path / "cache"

    def closloop(*words, **more):
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **more}
        environment.pop("CLOSLOOP_KERNEL", None)
        command = [CLOSLOOP, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    packed = [CLOSLOOP, "kernel", "wheel", "--out", str(tmp_path)]
    subprocess.run(packed, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("closloop_kernel-*.whl")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    shown = closloop("kernel", "show", "--json")
    assert shown.returncode == 3, shown.stdout
    built = closloop("kernel", "build", PYTHONPATH=str(site))
    assert built.returncode == 0, built.stderr
    assert "already there" in built.stdout
    assert not cache.exists()
    shown = closloop("kernel", "show", "--json", PYTHONPATH=str(site))
    assert json.loads(shown.stdout)["path"].startswith(str(site))
    booted = closloop("kernel", "check", PYTHONPATH=str(site))
    assert booted.returncode == 0, booted.stderr
    sources = site / "closloop_kernel" / "sources"
    assert "GNU GENERAL PUBLIC LICENSE" in (sources / "GPL-2.0-only.txt").read_text()
    assert (sources / "patches.py").is_file()
    assert (sources / "net_closloop" / "engine.c").is_file()
