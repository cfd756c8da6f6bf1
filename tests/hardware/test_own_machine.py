"""A test file's own machine shows nothing of the real one's, and ends with the file's tests."""

import os
import threading
from pathlib import Path

import pytest

from orchestration.virtual_rack import control_groups

pytestmark = pytest.mark.root
KINDS = ("net", "mnt")


def seen():
    return [os.readlink(f"/proc/self/ns/{kind}") for kind in KINDS], Path.cwd()


@pytest.fixture(scope="module")
def around():
    """Look before the machine is made, and after it has ended."""
    before = seen()
    yield before
    assert seen() == before


def test_it_is_empty_and_ends_though_a_thread_is_left(around, own_machine):
    namespaces, place = around
    mine, here = seen()
    assert not set(mine) & set(namespaces)
    assert here == place
    assert {*os.listdir("/run")} <= {"mount"}  # libmount's own
    assert os.listdir("/sys/class/net") == ["lo"]
    assert control_groups.hierarchies()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
