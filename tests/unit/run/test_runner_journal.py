"""The journal survives being cut anywhere."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.run.folder import Journal, read_journal


def write(path, *trials):
    journal = Journal(path)
    for trial in trials:
        journal.add("trial-started", trial=trial)
    journal.close()


def test_entries_come_back_in_order_with_their_time(tmp_path):
    write(tmp_path / "j", "a", "b")
    entries = list(read_journal(tmp_path / "j"))
    assert [(entry["event"], entry["trial"]) for entry in entries] == [
        ("trial-started", "a"),
        ("trial-started", "b"),
    ]
    assert all(entry["at"].endswith("+00:00") for entry in entries)


def test_no_journal_has_no_entries(tmp_path):
    assert list(read_journal(tmp_path / "none")) == []


def test_every_line_is_one_json_object(tmp_path):
    write(tmp_path / "j", "a\nb", "ü")
    lines = (tmp_path / "j").read_text().splitlines()
    assert [json.loads(line)["trial"] for line in lines] == ["a\nb", "ü"]


@settings(max_examples=30)
@given(cut=st.integers(0, 200))
def test_a_torn_end_costs_its_own_line_only(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("journal") / "j"
    write(path, "a", "b")
    whole = path.read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    path.write_bytes(kept)
    write(path, "c")
    trials = [entry["trial"] for entry in read_journal(path)]
    complete = [json.loads(line)["trial"] for line in kept.splitlines() if line.endswith(b"}")]
    assert trials == [*complete, "c"]
