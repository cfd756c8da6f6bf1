"""What the comparison of a machine's state counts as being there."""

from orchestration.bench import machine_state


def test_bpf_objects_that_are_about_to_be_freed_are_not_counted(monkeypatch):
    """Those that nobody has are pinned, attached, or of a program that has just ended."""
    looks = iter([[7, 8, 9], [8, 9, 10]])
    monkeypatch.setattr(machine_state, "_BPF", {"map_id": 12})
    monkeypatch.setattr(machine_state, "_object_ids", lambda command: next(looks))
    monkeypatch.setattr(machine_state, "_with_descriptors", lambda: {"map_id": {9}})
    assert machine_state.bpf_objects() == {"map_id": ([8, 9], {9})}


def test_bpf_objects_that_processes_have_are_looked_for_once(monkeypatch):
    looks = iter([[9]])
    monkeypatch.setattr(machine_state, "_BPF", {"map_id": 12})
    monkeypatch.setattr(machine_state, "_object_ids", lambda command: next(looks))
    monkeypatch.setattr(machine_state, "_with_descriptors", lambda: {"map_id": {9}})
    assert machine_state.bpf_objects() == {"map_id": ([9], {9})}
