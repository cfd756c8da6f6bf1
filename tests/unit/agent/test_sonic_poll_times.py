"""Times of polls that nobody stamps: never later than the truth."""

from hypothesis import given
from hypothesis import strategies as st

from orchestration.agent.sonic.poll_times import PollTimes

MS = 1_000_000


def test_unknown_until_a_counter_changes_then_when_the_reading_before_was_asked_for():
    times = PollTimes(1)
    assert times.update([(5,)], 10 * MS) == [None]
    assert times.update([(5,)], 20 * MS) == [None]
    assert times.update([(6,)], 30 * MS) == [20 * MS]
    # the same number again is as old as before, and ages
    assert times.update([(6,)], 500 * MS) == [20 * MS]
    assert times.update([(9,)], 510 * MS) == [500 * MS]


def test_a_queue_that_stays_the_same_was_polled_in_a_sweep_that_has_ended():
    times = PollTimes(2)
    found = [times.update([(n, 1), (0, 0)], n * 100 * MS) for n in range(6)]
    idle = [row[1] for row in found]
    assert idle == [None, None, None, 0, 100 * MS, 200 * MS]


@st.composite
def switches(draw):
    """Draw polls of some queues, one after the other, and what each reading finds."""
    count = draw(st.integers(1, 4))
    polls, now = [], 0
    for _ in range(draw(st.integers(1, 8))):
        for queue in range(count):
            now += draw(st.integers(1, 40))
            polls.append((now, queue, draw(st.booleans())))
        now += draw(st.integers(1, 100))
    readings = sorted(draw(st.lists(st.integers(1, now + 50), min_size=2, max_size=30)))
    return count, polls, readings


@given(switches())
def test_no_time_is_later_than_the_poll(switch):
    count, polls, readings = switch
    times = PollTimes(count)
    for at in readings:
        values, polled = [0] * count, [None] * count
        for t, queue, busy in polls:
            if t <= at:
                values[queue] += busy
                polled[queue] = t
        for said, truth in zip(times.update(values, at), polled, strict=True):
            assert said is None or (truth is not None and said <= truth)


@given(st.integers(5, 40), st.integers(60, 200))
def test_where_traffic_flows_a_time_is_at_most_a_reading_and_a_poll_old(period, interval):
    times = PollTimes(1)
    for at in range(period, 5000, period):
        (said,) = times.update([at // interval], at)
        if at > 2 * interval + period:
            assert at - said <= interval + 2 * period
