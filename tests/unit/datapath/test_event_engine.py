"""The data path's engine takes events in the order of their times, and of their scheduling."""

import ctypes
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.kernel.patches import DATA_PATH

HERE = Path(__file__).parents[1]
EVENTS, LAST = 400, 399  # the last one is only ever what comes last at its time
HAPPENED = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint64)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """engine.c as a library; what it includes of the kernel is empty, event_engine.c has it."""
    folder = tmp_path_factory.mktemp("engine")
    source = next(path for path in DATA_PATH if path.name == "engine.c").parent
    for path in (source / "engine.c", source / "engine.h"):
        for line in path.read_text().splitlines():
            if line.startswith("#include <"):
                header = folder / line.split("<")[1].split(">")[0]
                header.parent.mkdir(exist_ok=True)
                header.touch()
    library = folder / "engine.so"
    warnings = ("-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-variable")
    places = (f"-I{folder}", f"-I{source}")
    compiled = ("gcc", "-O1", "-shared", "-fPIC", *warnings, *places, "-o", str(library))
    subprocess.run([*compiled, str(HERE / "event_engine.c")], check=True)
    made = ctypes.CDLL(str(library))
    for name in ("schedule", "schedule_last"):
        getattr(made, name).argtypes = (ctypes.c_uint32, ctypes.c_uint64)
    return made


class Model:
    """What the engine is to do: the least of all times, then of all orders."""

    def __init__(self):
        self.waiting, self.orders = {}, 0

    def schedule(self, number, at_ns):
        if self.waiting.get(number, (None,))[0] != at_ns:
            self.waiting[number] = (at_ns, self.orders)
            self.orders += 1

    def schedule_last(self, number, at_ns):
        self.waiting[number] = (at_ns, float("inf"))

    def cancel(self, number):
        self.waiting.pop(number, None)

    def next(self):
        return min(self.waiting, key=self.waiting.__getitem__)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), spread_ns=st.sampled_from([3, 400, 5_000, 30_000]))
def test_events_happen_by_time_and_then_as_they_were_scheduled(engine, seed, spread_ns):
    dice, model, left = random.Random(seed), Model(), 1_500
    seen = []

    def change(now_ns):
        number = dice.randrange(EVENTS)
        # some are late, some later than the wheel reaches
        at_ns = max(0, now_ns - 2 + dice.randrange(spread_ns))
        what = "cancel" if dice.random() < 0.1 else "schedule"
        if number == LAST:
            what = "schedule_last"
        for one in (engine, model):
            getattr(one, what)(*((number,) if what == "cancel" else (number, at_ns)))

    @HAPPENED
    def happened(number, now_ns):
        nonlocal left
        wanted = model.next()
        at_ns, _ = model.waiting.pop(wanted)
        seen.append((number, wanted, now_ns >= at_ns))
        for _ in range(dice.randrange(3) if left > 0 else 0):
            left -= 1
            change(now_ns)

    engine.reset(happened)
    for _ in range(300):
        change(0)
    engine.go()
    assert all(number == wanted and in_time for number, wanted, in_time in seen)
    assert not model.waiting
    assert len(seen) > 200
