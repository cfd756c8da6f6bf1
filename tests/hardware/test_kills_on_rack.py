"""A virtual rack that is undone, and one whose runs are killed and whose devices reboot."""

import sys
from pathlib import Path

from orchestration.bench.rack import after_undo, closloop, device_dumps
from orchestration.bench.rack_kills import disturb

sys.path.insert(0, str(Path(__file__).parent))

from rack_lab import MARKS, campaign, run_on

pytestmark = MARKS


def test_restore_undoes_provisioning_too_and_leaves_no_difference(bare):
    rack, folder = bare
    found = device_dumps(rack)
    for verb in ("provision", "restore"):
        code, text = closloop(rack, folder, verb, str(rack.inventory), "--json")
        assert code == 0, text
    assert device_dumps(rack) == after_undo(found)


def test_kills_and_reboots_leave_nothing_behind_and_others_rows_alone(bare):
    rack, folder = bare
    rows = disturb(rack, folder, kills=1, reboots=3, seed=3)
    assert [row["differs"] for row in rows] == [[]] * 4, rows
    assert not any(row["theirs_changed"] for row in rows)
    # and the next run puts the books right by itself
    code, said = run_on(rack, folder, campaign(folder, "after", "[secn1]", repeats=1))
    assert code == 0, said
