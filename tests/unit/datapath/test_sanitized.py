"""Whole trials of the packet engine as its other builds see them.

The build "checked" asserts in every window that no packet, no byte and nothing of a buffer is lost
or made; AddressSanitizer and UndefinedBehaviorSanitizer watch it in a process of its own.
"""

from pathlib import Path

import numpy as np
import pytest

from orchestration.datapath import native_policy, packet_engine
from orchestration.datapath.library import BUILD_VARIABLE
from tests.process_trials import NAMES, record_of, tables_of
from tests.sanitizers import run_sanitized

ROOT = Path(__file__).parents[3]
RUN = """
import sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.process_trials import NAMES, record_of
for name in NAMES:
    print(name, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        record = record_of(name, Path(folder))
    print(name, record.facts["packets"])
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The records of all trials, by name."""
    return {name: record_of(name, tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_in_any_window(name, released, tmp_path, monkeypatch):
    monkeypatch.setenv(BUILD_VARIABLE, "checked")
    monkeypatch.setattr(native_policy, "_loaded", {})  # which the release's engine has
    # and who calls how often changes nothing
    monkeypatch.setattr(packet_engine, "_HOPS_PER_CALL", 1_009)
    checked = record_of(name, tmp_path)
    ours, theirs = (tables_of(record) for record in (checked, released[name]))
    assert ours.keys() == theirs.keys()
    for table, column in ours.items():
        np.testing.assert_array_equal(column, theirs[table], err_msg=table)


@pytest.mark.slow
@pytest.mark.sanitizers
def test_the_sanitizers_find_nothing_in_whole_trials(released):
    ended = run_sanitized(RUN, str(ROOT))
    assert ended.returncode == 0, ended.stderr[-8000:]
    packets = dict(line.split() for line in ended.stdout.splitlines())
    wanted = {name: str(record.facts["packets"]) for name, record in released.items()}
    assert packets == wanted


def test_the_trials_do_what_they_are_for(released):
    facts = {name: record.facts for name, record in released.items()}
    dropped = {name: one.ports.dropped_packets[-1].sum() for name, one in released.items()}
    kinds = {name: {event.kind for event in one.events} for name, one in released.items()}
    assert facts["quickstart"]["cnps"] > 100
    assert dropped["pfc"] == 0
    for name in ("pfc", "classes", "watchdog-drop"):
        assert released[name].samples["priority"].pauses_sent[-1].sum() > 50
    assert facts["drops"]["naks"] > 10 < facts["drops"]["timeouts"]
    assert facts["own-policy"]["cnps"] > 100
    assert "pfc-deadlock" in kinds["watchdog-alert"]
    for name in ("watchdog-drop", "watchdog-forward"):
        assert {"pfc-deadlock", "pfc-restored"} <= kinds[name]
    assert (released["lasting"].samples["flow"].acked_bytes[-1] > 0).all()
    assert len(np.unique(released["changes"].changes["dcqcn"].applied_ns)) > 10
