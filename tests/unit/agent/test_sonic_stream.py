"""Sessions of High Frequency Telemetry: their templates, their clocks, and the stand-in's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.agent.sonic import stream as sonic_stream
from orchestration.agent.sonic.ipfix import records, templates
from orchestration.agent.sonic.stream import DepthStream, RecordClock
from orchestration.virtual_rack import sonic_telemetry
from orchestration.virtual_rack.sonic_model import QueueCounts
from orchestration.virtual_rack.sonic_telemetry import Telemetry, record_message, template_message
from tests.unit.agent.test_sonic_bridge import Plane, make_model

S, MS = 10**9, 10**6
PROFILE = "HIGH_FREQUENCY_TELEMETRY_PROFILE|P"
GROUP = "HIGH_FREQUENCY_TELEMETRY_GROUP|P|QUEUE"
SESSION = "HIGH_FREQUENCY_TELEMETRY_SESSION_TABLE|P|QUEUE"
ON = {"stream_state": "enabled", "poll_interval": "1000"}
QUEUES = {"object_names@": "Ethernet4|3,Ethernet0|3", "object_counters@": "CURR_OCCUPANCY_CELLS"}


class Switch:
    """The stand-in's telemetry over dicts."""

    def __init__(self, **traits):
        traits = {"release": "202511", "asic": "mellanox", "streams": True, **traits}
        self.state, self.sent, self.log = {}, [], []
        self.plane = Plane()
        self.telemetry = Telemetry(
            make_model(**traits), self.plane, self.write, self.sent.append, self.log.append
        )

    def write(self, key, row):
        if row is None:
            self.state.pop(key, None)
        else:
            self.state[key] = row

    def apply_row(self, key, row, now_ns=0):
        self.telemetry.apply_row(key, row, now_ns)


def read(switch):
    """Return the records that a session's own templates find in what was sent."""
    known = templates(switch.state[SESSION]["session_config"])
    return [values for message in switch.sent for _, values in records(message, known)]


def test_the_stand_in_streams_when_profile_and_group_are_there_in_either_order():
    for first, second in (((PROFILE, ON), (GROUP, QUEUES)), ((GROUP, QUEUES), (PROFILE, ON))):
        switch = Switch()
        switch.apply_row(*first)
        assert switch.state == {}
        switch.apply_row(*second)
        row = switch.state[SESSION]
        assert (row["object_names"], row["object_ids"]) == ("Ethernet0|3,Ethernet4|3", "1,2")
        assert (row["stream_status"], row["session_type"]) == ("enabled", "ipfix")
        switch.plane.counts = {("Ethernet0", 3): QueueCounts(1000, 0, 0, 0, 0)}
        switch.telemetry.poll(0, 7 * S)
        switch.telemetry.poll(MS - 1, 8 * S)
        switch.telemetry.poll(MS, 9 * S)
        assert read(switch) == [(7 * S, 4, 0), (9 * S, 4, 0)]


def test_the_stand_in_ends_a_session_with_its_group_and_renews_it_with_other_queues():
    switch = Switch()
    switch.apply_row(PROFILE, ON)
    switch.apply_row(GROUP, QUEUES)
    before = switch.state[SESSION]["session_config"]
    switch.apply_row(PROFILE, {**ON, "stream_state": "disabled"})
    assert switch.state[SESSION]["stream_status"] == "disabled"
    assert switch.telemetry.next_ns() is None
    assert switch.state[SESSION]["session_config"] == before
    switch.apply_row(GROUP, {**QUEUES, "object_names@": "Ethernet0|3"})
    assert switch.state[SESSION]["session_config"] != before
    switch.apply_row(GROUP, None)
    assert SESSION not in switch.state


@pytest.mark.parametrize(
    "row",
    [
        {**QUEUES, "object_names@": "Ethernet9|3"},
        {**QUEUES, "object_counters@": "CURR_OCCUPANCY_BYTES"},  # Nvidia counts cells
    ],
)
def test_the_stand_in_refuses_what_its_asic_cannot_stream(row):
    switch = Switch()
    switch.apply_row(PROFILE, ON)
    switch.apply_row(GROUP, row)
    assert switch.state == {}
    assert switch.log == [f"{GROUP}: refused: there is no such queue or counter"]


@pytest.mark.parametrize("traits", [{"release": "202505"}, {"streams": False}])
def test_a_release_or_an_asic_without_telemetry_ignores_its_rows(traits):
    switch = Switch(**traits)
    switch.apply_row(PROFILE, ON)
    switch.apply_row(GROUP, QUEUES)
    assert switch.state == {}


class FakeRedis:
    """The rows that a stream looks for."""

    def __init__(self, row):
        self.row = row

    def hash(self, db, key):
        assert key == "COUNTERS_QUEUE_NAME_MAP"
        return {"Ethernet0:3": "oid:a", "Ethernet4:3": "oid:b", "Ethernet0:4": "oid:c"}

    def rows(self, db, pattern):
        return {SESSION: self.row}


class Pipe:
    """A socket that has one datagram after the other."""

    def __init__(self):
        self.datagrams, self.closed = [], False

    def fileno(self):
        return 5

    def recv_into(self, buffer):
        if not self.datagrams:
            raise BlockingIOError
        piece = self.datagrams.pop(0)
        if isinstance(piece, OSError):
            raise piece
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self):
        self.closed = True


def stream_of(monkeypatch, fields, cell_bytes=192, **row):
    pipe = Pipe()
    monkeypatch.setattr(sonic_stream.genetlink, "subscribe", lambda *_: pipe)
    at(monkeypatch, 99 * S, 999 * S)
    config = template_message(300, iter(fields)).decode(errors="surrogateescape")
    said = {
        "stream_status": "enabled",
        "session_type": "ipfix",
        "object_names": "Ethernet0|3,Ethernet4|3,Ethernet8|3",
        "object_ids": "7,9,11",
        "session_config": config,
        **row,
    }
    watched = {}
    stream = DepthStream(FakeRedis(said), watched.__setitem__, watched.pop)
    stream.subscribe(["oid:b", "oid:a", "oid:c"], cell_bytes)
    return stream, pipe, watched


def datagram(observed_ns, *values):
    message = record_message(300, 0, observed_ns, list(values))
    length = 20 + len(message)
    return (
        sonic_telemetry.HEADER.pack(length, 0x20, 0, 0, 0)
        + sonic_telemetry.GENL_HEADER.pack(1, 1, 0)
        + message
    )


def at(monkeypatch, monotonic_ns, wall_ns):
    monkeypatch.setattr(sonic_stream.time, "monotonic_ns", lambda: monotonic_ns)
    monkeypatch.setattr(sonic_stream.time, "time_ns", lambda: wall_ns)


BYTES, CELLS = sonic_stream.DEPTH_BYTES, sonic_stream.DEPTH_CELLS


def test_labels_lead_to_queues_and_cells_become_bytes(monkeypatch):
    fields = [(9, CELLS), (7, 21 << 16 | 1), (7, BYTES), (11, BYTES), (9, 1 << 16 | 0x18)]
    stream, pipe, watched = stream_of(monkeypatch, fields)
    assert (stream.queues, list(watched)) == ({0, 1}, [5])
    at(monkeypatch, 100 * S, 1000 * S)
    assert stream.depths() == [None] * 3
    pipe.datagrams += [datagram(999 * S, 10, 1, 5000, 1, 1), datagram(999 * S + 5, 20, 1, 6, 1, 1)]
    assert stream.depths() == [(20 * 192, 99 * S + 5), (6, 99 * S + 5), None]
    # what is streamed last stays, with its time
    at(monkeypatch, 100 * S + S // 2, 1000 * S + S // 2)
    assert stream.depths()[1] == (6, 99 * S + 5)
    stream.close()
    assert (pipe.closed, watched) == (True, {})


def test_cells_of_unknown_size_are_no_depth(monkeypatch):
    stream, _, watched = stream_of(monkeypatch, [(9, CELLS)], cell_bytes=None)
    assert (stream.queues, watched) == (set(), {})


@pytest.mark.parametrize(
    "row",
    [{"stream_status": "disabled"}, {"session_type": "x"}, {"session_config": "?"}],
)
def test_a_session_that_streams_nothing_is_not_listened_to(monkeypatch, row):
    stream, _, watched = stream_of(monkeypatch, [(9, CELLS)], **row)
    assert (stream.queues, watched) == (set(), {})


def test_a_silent_stream_is_looked_for_anew_and_may_have_another_template(monkeypatch):
    stream, pipe, watched = stream_of(monkeypatch, [(9, CELLS)])
    at(monkeypatch, 100 * S, 1000 * S)
    pipe.datagrams.append(datagram(999 * S, 4))
    assert stream.depths()[0] == (4 * 192, 99 * S)
    # a queue was added: orchagent makes another template, whose number the records have from now on
    config = template_message(301, iter([(7, CELLS), (9, CELLS)]))
    stream._redis.row["session_config"] = config.decode(errors="surrogateescape")
    renewed = datagram(1000 * S, 5, 6).replace(b"\x01\x2c", b"\x01\x2d")
    pipe.datagrams.append(renewed)
    at(monkeypatch, 100 * S + S // 2, 1000 * S + S // 2)
    assert stream.depths()[0] == (4 * 192, 99 * S)
    at(monkeypatch, 102 * S, 1002 * S)
    assert stream.depths()[0] is None  # the polled depth is later by now
    pipe.datagrams.append(renewed)
    assert stream.depths()[:2] == [(6 * 192, 100 * S), (5 * 192, 100 * S)]
    assert list(watched) == [5]


def test_lost_and_broken_datagrams_are_counted_and_others_taken(monkeypatch):
    stream, pipe, _ = stream_of(monkeypatch, [(9, CELLS)])
    at(monkeypatch, 100 * S, 1000 * S)
    broken = datagram(999 * S, 3)
    broken = broken[:22] + b"\xff\xff" + broken[24:]
    pipe.datagrams += [broken, OSError(105, "No buffer space"), datagram(999 * S, 4), b"x"]
    assert stream.depths()[0] == (4 * 192, 99 * S)
    said = stream.status()
    assert (said["broken"], said["overruns"], said["records"]) == (1, 1, 1)


def test_a_time_in_the_format_of_ntp_is_understood(monkeypatch):
    stream, pipe, _ = stream_of(monkeypatch, [(9, CELLS)])
    at(monkeypatch, 100 * S, 1000 * S)
    pipe.datagrams.append(datagram((2_208_988_800 + 999) << 32 | 1 << 31, 1))
    assert stream.depths()[0] == (192, 99 * S + S // 2)
    assert not stream.status()["own_clock"]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1), st.integers(0, S))
def test_times_of_the_wall_clock_are_exact_and_those_of_another_clock_at_most_a_delay_off(
    steps, ahead
):
    wall, own = RecordClock(), RecordClock()
    now, shortest = 1000, 10**9
    for step, delay in steps:
        now += step
        shortest = min(shortest, delay)
        wall.arrived(5 * S + now - delay, now, 5 * S + now)
        assert wall.monotonic_ns(5 * S + now - delay) == now - delay
        # one that began when the switch did
        own.arrived(now - delay + ahead - 10**12, now, 5 * S + now)
        assert own.is_own
        found = own.monotonic_ns(now - delay + ahead - 10**12)
        assert found - (now - delay) == shortest


def test_the_family_is_the_one_that_the_constants_name(tmp_path):
    file = tmp_path / "constants.yml"
    assert sonic_stream.netlink_group(str(file)) == ("sonic_stel", "ipfix")
    file.write_text("constants:\n  bgp:\n    genl_family: no\n")
    assert sonic_stream.netlink_group(str(file)) == ("sonic_stel", "ipfix")
    file.write_text(
        'constants:\n    high_frequency_telemetry:\n        genl_family: "other"\n'
        '        genl_multicast_group: "there"\n'
    )
    assert sonic_stream.netlink_group(str(file)) == ("other", "there")
    assert not sonic_stream.can_stream(str(file))
    file.write_text(sonic_telemetry.constants_file())
    assert sonic_stream.netlink_group(str(file)) == ("usersock", "3")
