"""The built kernel: it boots, its clock stands still while it works, and it goes as a wheel."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from orchestration.kernel.boot import (
    check_kernel,
    guest_argv,
    has_large_pages,
    launch,
    memory_dir,
)
from orchestration.kernel.cache import require_kernel

CLOSLOOP = Path(sys.executable).with_name("closloop")
MEBIBYTE = 1 << 20
# Writes one byte, and prints which pages are there then, of private memory and of shared.
WRITES_ONCE = """
import ctypes, mmap
libc = ctypes.CDLL(None)
for kind in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
    memory = mmap.mmap(-1, 1 << 20, flags=kind | mmap.MAP_ANONYMOUS)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    block = -at % 65536
    memory[block + 20_000] = 1
    there = (ctypes.c_ubyte * 256)()
    libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(1 << 20), there)
    print("there", *(page - block // 4096 for page in range(256) if there[page] & 1), flush=True)
input()
libc.reboot(0x4321FEDC)
"""

# Maps memory and gives it back 30,000 times without ever sleeping; prints how much free memory
# that took, in KB, and how far the scheduler's clock went, in us.
NEVER_SLEEPS = """
import ctypes, mmap, os
libc = ctypes.CDLL(None)
libc.mount(b"proc", b"/proc", b"proc", 0, None)
log = os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
os.lseek(log, 0, os.SEEK_END)
def free_kb():
    return int(open("/proc/meminfo").read().split("MemFree:")[1].split()[0])
def scheduler_us():
    os.write(log, b"here\\n")
    return int(os.read(log, 8192).split(b",")[2])
before_kb, begin_us = free_kb(), scheduler_us()
for _ in range(30_000):
    memory = mmap.mmap(-1, 4096)
    memory[0] = 1
    memory.close()
print("took", before_kb - free_kb(), scheduler_us() - begin_us, flush=True)
input()
libc.reboot(0x4321FEDC)
"""


def test_it_boots_and_keeps_virtual_time():
    report = check_kernel(require_kernel().path)
    # 20,000 system calls take no virtual time but for reading the clock
    assert report.busy_ns < 1_000
    assert report.sleep_ns // 10**9 == 1000
    assert {"dctcp", "cubic"} <= set(report.congestion_controls.split())


def launched(tmp_path, program):
    """Return a guest whose only process is the Python program."""
    (tmp_path / "program.py").write_text(program)
    init = tmp_path / "init"
    init.write_text(f"#!/bin/sh\nexec {sys.executable} -I {tmp_path / 'program.py'}\n")
    init.chmod(0o755)
    return launch(
        guest_argv(require_kernel().path, memory_bytes=256 * MEBIBYTE, init=init),
        cpu=min(os.sched_getaffinity(0)),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        memory_dir=memory_dir(256 * MEBIBYTE),
    )


def said(guest, word):
    """Return the rest of each line that the guest begins with `word`."""
    lines = (line.decode().split() for line in guest.stdout)
    return (words[1:] for words in lines if words[:1] == [word])


def test_memory_comes_in_blocks_inside_and_in_large_pages_outside(tmp_path):
    guest = launched(tmp_path, WRITES_ONCE)
    try:
        private, shared = islice(said(guest, "there"), 2)
        large = "huge=within_size" in Path(f"/proc/{guest.pid}/mountinfo").read_text()
        guest.communicate(b"\n", timeout=60)
    finally:
        guest.kill()
    # a first write brings 64 KB of a process' own memory, and one page of what is shared
    assert private == [str(page) for page in range(16)]
    assert shared == ["4"]
    assert large == has_large_pages()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_process_that_never_sleeps_gives_its_memory_back_and_moves_no_clock(tmp_path):
    guest = launched(tmp_path, NEVER_SLEEPS)
    try:
        took_kb, moved_us = map(int, next(said(guest, "took")))
        guest.communicate(b"\n", timeout=60)
    finally:
        guest.kill()
    # each of the 30,000 has a page table; those of 3,000 or so may wait
    assert took_kb < 30_000 * 4 // 8
    assert moved_us == 0


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
    assert (sources / "headers.sh").is_file()
    assert (sources / "net_closloop" / "engine.c").is_file()
