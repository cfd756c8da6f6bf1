"""The spool keeps what was appended, whole frames in order, within its size, through any kill."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.sinks.spool import DamagedSpool, SpoolWriter, spooled_bytes, spooled_runs
from orchestration.core.files import partial_of

LIMIT = 10 << 20


def write(spool: Path, payloads, limit=LIMIT, name="r1"):
    writer = SpoolWriter(spool, name, {"trial": "t"}, limit)
    taken = [writer.add(payload) for payload in payloads]
    return writer, taken


def read(spool: Path, first=0):
    [run] = spooled_runs(spool)
    return [payload for _, payload in run.parts(first)]


def test_parts_come_back_in_order(tmp_path):
    payloads = [bytes([n]) * 300 for n in range(40)]
    write(tmp_path, payloads)
    assert read(tmp_path) == payloads
    [run] = spooled_runs(tmp_path)
    assert run.about() == {"trial": "t"}


def test_reading_goes_on_at_any_part_after_older_ones_are_gone(tmp_path):
    payloads = [bytes([n]) * 300 for n in range(40)]
    write(tmp_path, payloads)
    [run] = spooled_runs(tmp_path)
    for number, _ in list(run.parts()):
        run.forget(number + 1)
        assert read(tmp_path, number + 1) == read(tmp_path) == payloads[number + 1 :]
    assert spooled_bytes(tmp_path) < 100


def test_a_part_that_is_being_written_is_not_there_yet(tmp_path):
    write(tmp_path, [b"one", b"two"])
    [run] = spooled_runs(tmp_path)
    whole = (run.folder / "00000001.part").read_bytes()
    for cut in range(len(whole)):
        (run.folder / "00000002.new").write_bytes(whole[:cut])
        assert read(tmp_path) == [b"one", b"two"]
    (run.folder / "00000002.new").rename(run.folder / "00000002.part")
    with pytest.raises(DamagedSpool):  # a disk that lost the end of what was written
        read(tmp_path)


def test_a_changed_byte_is_found(tmp_path):
    write(tmp_path, [b"one" * 50, b"two" * 50])
    [_, part] = sorted(tmp_path.glob("*/*.part"))
    data = bytearray(part.read_bytes())
    data[-60] ^= 1
    part.write_bytes(data)
    with pytest.raises(DamagedSpool):
        read(tmp_path)


def test_a_full_spool_takes_nothing_more_and_leaves_no_holes(tmp_path):
    writer, taken = write(tmp_path, [bytes(100_000)] * 60, limit=3_000_000)
    assert taken == sorted(taken, reverse=True)
    assert taken.index(False) > 0
    assert "3000000 bytes" in writer.full
    assert spooled_bytes(tmp_path) <= 3_000_000 + (1 << 20)
    assert read(tmp_path) == [bytes(100_000)] * taken.index(False)


def test_the_size_is_that_of_all_runs(tmp_path):
    write(tmp_path, [bytes(100_000)] * 15, name="r1")
    _, taken = write(tmp_path, [bytes(100_000)] * 15, limit=1_500_000, name="r2")
    assert not any(taken)


def test_a_folder_that_cannot_be_written_is_said_not_raised(tmp_path):
    (tmp_path / "file").write_text("")
    writer, taken = write(tmp_path / "file" / "spool", [b"one"])
    assert taken == [False]
    assert "cannot be written" in writer.full


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_ends_the_spool_and_nothing_else(tmp_path):
    writer, _ = write(tmp_path, [b"one"])
    [run] = spooled_runs(tmp_path)
    Path(partial_of(run.folder / "00000001.part")).symlink_to("/dev/full")
    assert not writer.add(b"two")
    assert not writer.add(b"three")
    assert "No space left" in writer.full
    assert read(tmp_path) == [b"one"]


def test_what_was_appended_before_a_kill_is_there_and_its_writer_is_gone(tmp_path):
    script = (
        "import sys, time; from pathlib import Path\n"
        "from collectors.sinks.spool import SpoolWriter\n"
        f"writer = SpoolWriter(Path({str(tmp_path)!r}), 'r1', {{}}, {LIMIT})\n"
        "for n in range(500): writer.add(str(n).encode())\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    [run] = spooled_runs(tmp_path)
    assert run.is_written()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    until = time.monotonic() + 60
    while run.is_written() and time.monotonic() < until:
        time.sleep(0.01)
    assert not run.is_written()
    assert read(tmp_path) == [str(n).encode() for n in range(500)]
