"""`bench run engine`: what it measures, and a program that is measured beside the packet engine."""

import os

import pytest

from orchestration.bench import engine, registry
from orchestration.core.errors import InputError, NotReadyError


@pytest.fixture
def small(monkeypatch):
    """One round of a millisecond on 16 hosts, and no kernel."""
    monkeypatch.setattr(engine, "_DURATION_NS", {4: 1_000_000})
    monkeypatch.setattr(engine, "_ROUNDS", 2)
    monkeypatch.setattr(engine, "_KERNEL_PODS", ())


def program(folder, script):
    path = folder / "other-engine"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("hop_ns", "holds"), [(1e9, True), (1e-9, False)])
def test_the_ratio_to_a_program_beside_it_has_a_target(small, tmp_path, hop_ns, holds):
    cores = os.sched_getaffinity(0)
    words = tmp_path / "words"
    other = program(tmp_path, f'echo "$@" >> {words}; echo "hops 5 ns/hop {hop_ns:.9f} (wall 9)"')
    found = engine.engine_speed(other)
    figure = next(figure for figure in found.figures if "of other-engine's" in figure.what)
    assert figure.holds is holds
    assert found.holds is holds  # nothing is dropped, both rounds have one digest, and so on
    assert words.read_text() == "k 4 m 1 x 100000\n" * 2
    assert len(found.data["beside_hop_ns"]["other-engine"][4]) == 2
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo hops 5", r"other-engine k 4 m 1 x 100000 prints no `ns/hop NUMBER`"),
        ("echo unknown word >&2; exit 3", r"other-engine k 4 m 1 x 100000 failed: unknown word"),
    ],
)
def test_a_program_that_cannot_be_measured_is_named_with_what_it_said(
    small, tmp_path, script, message
):
    with pytest.raises(NotReadyError, match=message):
        engine.engine_speed(program(tmp_path, script))


def test_a_program_is_measured_beside_the_engine_only(tmp_path):
    assert set(registry.select(["engine", "rtt"], tmp_path)) == {"engine", "rtt"}
    with pytest.raises(InputError, match="no program is measured beside that"):
        registry.select(["rtt"], tmp_path)
