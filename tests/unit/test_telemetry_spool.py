"""The spool keeps what was appended, whole frames in order, within its size, through any kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.sinks import spool as spool_module
from collectors.sinks.spool import (
    DamagedSpool,
    Place,
    SpoolWriter,
    frame,
    spooled_bytes,
    spooled_runs,
)

LIMIT = 10 << 20


def write(spool: Path, payloads, limit=LIMIT, name="r1"):
    writer = SpoolWriter(spool, name, {"trial": "t"}, limit)
    taken = [writer.add(1, payload) for payload in payloads]
    return writer, taken


def read(spool: Path, after=Place()):  # noqa: B008 (frozen)
    [run] = spooled_runs(spool)
    return [payload for _, payload, _ in run.frames(after)]


def test_frames_come_back_in_order_over_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 2_000)
    payloads = [bytes([n]) * 300 for n in range(40)]
    write(tmp_path, payloads)
    assert read(tmp_path) == payloads
    [run] = spooled_runs(tmp_path)
    assert len(list(run.folder.glob("*.seg"))) > 3
    assert run.about() == {"trial": "t"}


def test_reading_goes_on_at_any_place_after_older_segments_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 2_000)
    payloads = [bytes([n]) * 300 for n in range(40)]
    write(tmp_path, payloads)
    [run] = spooled_runs(tmp_path)
    places = [place for *_, place in run.frames(Place())]
    for number, place in enumerate(places):
        run.forget(place)
        assert read(tmp_path, place) == payloads[number + 1 :]


def test_a_torn_frame_is_not_there_yet(tmp_path):
    write(tmp_path, [b"one", b"two"])
    [segment] = tmp_path.glob("*/*.seg")
    whole = segment.read_bytes()
    third = frame(1, b"three")
    for cut in range(len(third)):
        segment.write_bytes(whole + third[:cut])
        assert read(tmp_path) == [b"one", b"two"]
    segment.write_bytes(whole + third)
    assert read(tmp_path) == [b"one", b"two", b"three"]


def test_a_changed_byte_is_found(tmp_path):
    write(tmp_path, [b"one" * 50, b"two" * 50])
    [segment] = tmp_path.glob("*/*.seg")
    data = bytearray(segment.read_bytes())
    data[-60] ^= 1
    segment.write_bytes(data)
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
def test_a_full_disk_ends_the_spool_and_nothing_else(tmp_path, monkeypatch):
    writer, _ = write(tmp_path, [b"one"])
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(writer, "_handle", full)
    assert not writer.add(1, b"two")
    assert not writer.add(1, b"three")
    assert "No space left" in writer.full
    assert read(tmp_path) == [b"one"]
    os.close(full)


def test_what_was_appended_before_a_kill_is_there_and_its_writer_is_gone(tmp_path):
    script = (
        "import sys, time; from pathlib import Path\n"
        "from collectors.sinks.spool import SpoolWriter\n"
        f"writer = SpoolWriter(Path({str(tmp_path)!r}), 'r1', {{}}, {LIMIT})\n"
        "for n in range(500): writer.add(1, str(n).encode())\n"
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
