"""The flow tables' arithmetic, on memory that a test writes as the BPF program does."""

import numpy as np
import pytest

from collectors.readers.flows import FlowTables, per_queue
from orchestration.agent.linux_switch.flow_layout import (
    CLEANUP_EVERY_SLOTS,
    ENTRY_BYTES,
    HEAD_BYTES,
    SLOT_BYTES,
)

HOSTS = {bytes([10, 0, 0, n]): n - 1 for n in range(1, 6)}
# two ports; the second has two traffic classes
PLACES = ((10, 0), (11, 0), (11, 1))


class Switch:
    """A table's memory, and packets that it sees."""

    def __init__(self, entries: int = 16) -> None:
        self.memory = bytearray(HEAD_BYTES + (SLOT_BYTES + ENTRY_BYTES) * entries)
        self._head = np.frombuffer(self.memory, np.uint32, HEAD_BYTES // 4)
        self._slots = np.frombuffer(self.memory, np.uint32, entries, HEAD_BYTES)
        start = HEAD_BYTES + SLOT_BYTES * entries
        words = np.frombuffer(self.memory, np.uint64, 4 * entries, start)
        self.entries = words.reshape(entries, 4)

    @property
    def used(self) -> int:
        return int(self._head[2])

    def packet(self, src, dst, payload=1000, *, port=10, klass=0, flow=1):
        key = port << 32 | (src << 16 | dst << 8 | flow)
        held = np.flatnonzero(self.entries[:, 0] == key)
        at = held[0] if len(held) else np.flatnonzero(self.entries[:, 0] == 0)[0]
        if not len(held):
            self._head[2] += 1
            ends = bytes([10, 0, 0, src, 10, 0, 0, dst])
            self.entries[at, :2] = key, int.from_bytes(ends, "little")
            self.entries[at, 3] = klass << 32
        self.entries[at, 2] += np.uint64(payload)
        self._slots[at] = self._head[0]


@pytest.fixture
def switch():
    return Switch()


@pytest.fixture
def tables(switch):
    return FlowTables([switch.memory], PLACES, HOSTS)


def test_incast_degree_counts_senders_not_flows(switch, tables):
    for flow in (1, 2, 3):
        switch.packet(1, 5, flow=flow)
    switch.packet(2, 5)
    switch.packet(3, 5)
    switch.packet(4, 3)
    reading = tables.read()
    assert reading.incast_degree.tolist() == [3, 0, 0]
    assert reading.mice_flows.tolist() == [6, 0, 0]


def test_incast_degree_is_that_of_the_busiest_receiver():
    queue, receiver = np.array([0, 0, 0, 1]), np.array([3, 3, 4, 3])
    reading = per_queue(queue, receiver, np.array([0, 1, 2, 0]), np.zeros(4, int), 3, 5)
    assert reading.incast_degree.tolist() == [2, 1, 0]


def test_two_addresses_of_a_host_are_one_sender(switch):
    tables = FlowTables([switch.memory], PLACES, {**HOSTS, bytes([10, 0, 0, 9]): 0})
    switch.packet(1, 5)
    switch.packet(9, 5)
    assert tables.read().incast_degree[0] == 1


def test_an_elephant_has_sent_more_than_a_megabyte(switch, tables):
    switch.packet(1, 5, 999_999)
    switch.packet(1, 5, 1)
    reading = tables.read()
    assert (reading.mice_flows[0], reading.elephant_flows[0]) == (1, 0)
    switch.packet(1, 5, 1)
    reading = tables.read()
    assert (reading.mice_flows[0], reading.elephant_flows[0]) == (0, 1)


def test_queues_are_told_apart_by_port_and_class(switch, tables):
    switch.packet(1, 5, port=11)
    switch.packet(2, 5, port=11, klass=1)
    switch.packet(3, 5, port=11, klass=3)
    # a class that the testbed has not shares the first one's queue
    assert tables.read().mice_flows.tolist() == [0, 2, 1]


def test_several_switches_are_one_reading():
    switches = [Switch(), Switch()]
    tables = FlowTables([item.memory for item in switches], PLACES, HOSTS)
    switches[0].packet(1, 5)
    switches[1].packet(1, 5, port=11)
    assert tables.read().mice_flows.tolist() == [1, 1, 0]


def test_a_flow_is_counted_for_the_slots_of_the_window(switch, tables):
    switch.packet(1, 5)
    assert [int(tables.read().mice_flows[0]) for _ in range(4)] == [1, 1, 1, 0]


def test_a_slot_may_take_several_readings(switch):
    tables = FlowTables([switch.memory], PLACES, HOSTS, readings_per_slot=2)
    switch.packet(1, 5)
    assert [int(tables.read().mice_flows[0]) for _ in range(7)] == [1, 1, 1, 1, 1, 1, 0]


def test_the_scheduled_cleanup_removes_what_is_expired(switch, tables):
    switch.packet(1, 5)
    for _ in range(CLEANUP_EVERY_SLOTS - 1):
        tables.read()
    switch.packet(2, 5)
    assert switch.used == 2
    tables.read()
    assert switch.used == 1
    assert np.count_nonzero(switch.entries[:, 0]) == 1
    facts = tables.facts()
    assert (facts["scheduled_cleanups"], facts["removed_on_schedule"]) == (1, 1)
    assert facts["threshold_cleanups"] == 0


def test_the_threshold_cleanup_removes_the_older_half_of_what_is_expired(switch, tables):
    for flow in range(4):
        switch.packet(1, 5, flow=flow)
    tables.read()
    for flow in range(4, 8):
        switch.packet(1, 5, flow=flow)
    for _ in range(4):
        tables.read()
    for flow in range(8, 12):
        switch.packet(1, 5, flow=flow)
    tables.read()
    assert switch.used == 12, "three quarters are no more than the threshold"
    switch.packet(1, 5, flow=12)
    tables.read()
    assert switch.used == 13 - 4
    left = set((switch.entries[:, 0] & np.uint64(0xFF)).tolist()) - {0}
    assert left == {*range(4, 13)}
    facts = tables.facts()
    assert (facts["threshold_cleanups"], facts["removed_at_threshold"]) == (1, 4)
    assert facts["most_entries_used"] == 13


def test_a_flow_that_was_removed_begins_anew(switch, tables):
    switch.packet(1, 5, 2_000_000)
    assert tables.read().elephant_flows[0] == 1
    for _ in range(CLEANUP_EVERY_SLOTS):
        tables.read()
    switch.packet(1, 5, 1000)
    reading = tables.read()
    assert (reading.mice_flows[0], reading.elephant_flows[0]) == (1, 0)


def test_memory_of_another_layout_is_refused():
    with pytest.raises(ValueError, match="layout"):
        FlowTables([bytearray(HEAD_BYTES + ENTRY_BYTES + 8)], PLACES, HOSTS)


def test_flows_of_others_do_not_count(switch, tables):
    switch.packet(1, 5)
    switch.packet(77, 5)
    switch.packet(1, 78)
    assert tables.read().mice_flows.tolist() == [1, 0, 0]
