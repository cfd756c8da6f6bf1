"""Flow tables of a virtual rack's Linux switches: their agents' counts are the emulation's."""

import json
import subprocess
from itertools import groupby

import pytest

from orchestration.bench.rack import closloop, program
from tests.hardware.rack_lab import provisioned_rack
from tests.hardware.test_rack_in_real_time import FOUR
from tests.hardware.watched_flows import FLOWS, WATCHER, seen_in

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.ssh,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flows")
    (folder / "watcher.py").write_text(WATCHER)
    with provisioned_rack(folder, FOUR, sonic=()) as rack:
        yield rack


def values_in_turn(seen, name, number):
    """Return the values that a queue takes, each once as long as it stays."""
    return [value for value, _ in groupby(row[name][number] for row in seen)]


def test_a_rack_sees_the_flows_that_the_emulation_sees(lab):
    rack, folder = lab
    states = {name: rack.dump(name) for name in ("leaf1", "spine1", "h1")}
    path = folder / "there.yml"
    path.write_text(FLOWS.format(folder=folder, control="dctcp", where="hardware"))
    code, text = closloop(rack, folder, "run", str(path), "-i", str(rack.inventory), "--json")
    assert code == 0, text
    (trial,) = (folder / "runs" / "flows").glob("*/trial.json")
    facts = json.loads(trial.read_text())["facts"]["flow_table"]
    assert facts["packets_not_counted"] == facts["flows_of_others"] == 0
    assert facts["most_entries_used"] == 2
    assert facts["scheduled_cleanups"] > 0
    there = seen_in(folder)
    assert {name: rack.dump(name) for name in states} == states

    path = folder / "here.yml"
    text = FLOWS.format(folder=folder, control="dctcp", where="emulated\nfabric: linux")
    path.write_text(text.replace("campaign: flows", "campaign: emulated"))
    argv = program("run", str(path), "--json")
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    here = seen_in(folder)
    # the rack's trial ends with the reading that sees all flows done, perhaps one later
    assert abs(len(here) - len(there)) <= 2
    for name in here[0]:
        for number in range(len(here[0][name])):
            assert values_in_turn(here, name, number) == values_in_turn(there, name, number)
    # The bottleneck is busy however the two flows share it, so only the small one's end may differ.
    # What begins or ends within microseconds of a reading may be in the next one.
    for name in ("incast_degree", "elephant_flows"):
        pairs = list(zip(here, there, strict=False))
        differ = [number for number, (a, b) in enumerate(pairs) if a[name] != b[name]]
        assert len(differ) <= 3, [(number, *pairs[number]) for number in differ]
    assert sum(map(max, (row["elephant_flows"] for row in here))) > 10
