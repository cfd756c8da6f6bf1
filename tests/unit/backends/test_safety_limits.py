"""The rate limit on threshold changes, and the circuit breaker."""

import numpy as np
import pytest

from inventory.rack import Guardrails
from orchestration.backends.hardware.safety.limits import (
    ChangeLimiter,
    CircuitBreaker,
    GuardrailCrossed,
    PortCounters,
)
from orchestration.core.knobs import ECN
from orchestration.core.records import Change


def thresholds(*changes: tuple[int, int]) -> Change:
    """Set queues to a kmin each; kmax is twice that."""
    kmin = np.array([kmin for _, kmin in changes], dtype=np.int64)
    return ECN.change([queue for queue, _ in changes], kmin, 2 * kmin, np.full(len(changes), 0.5))


def plain(change: Change) -> list[tuple[int, int]]:
    assert change.kmin_bytes.dtype == change.kmax_bytes.dtype == np.int64
    assert (change.kmax_bytes == 2 * change.kmin_bytes).all()
    assert (change.pmax == 0.5).all()
    return list(zip(change.targets.tolist(), change.kmin_bytes.tolist(), strict=True))


def test_without_an_interval_every_change_is_made() -> None:
    limiter = ChangeLimiter(ECN, 2, 0)
    for kmin in (1, 2, 3):
        assert plain(limiter.submit(thresholds((0, kmin), (1, kmin)), 7)) == [(0, kmin), (1, kmin)]
    assert limiter.held_back == 0


def test_a_change_too_early_waits_exactly_until_it_may_be_made() -> None:
    limiter = ChangeLimiter(ECN, 1, 100)
    assert plain(limiter.submit(thresholds((0, 1)), 1000)) == [(0, 1)]

    assert plain(limiter.submit(thresholds((0, 2)), 1001)) == []

    assert plain(limiter.due(1099)) == []
    assert plain(limiter.due(1100)) == [(0, 2)]
    assert plain(limiter.due(1200)) == []
    assert (limiter.held_back, limiter.superseded) == (1, 0)


def test_the_latest_of_the_changes_that_wait_is_made_and_the_others_are_counted() -> None:
    limiter = ChangeLimiter(ECN, 1, 100)
    limiter.submit(thresholds((0, 1)), 0)
    for kmin in (2, 3, 4):
        limiter.submit(thresholds((0, kmin)), 10)

    assert plain(limiter.due(100)) == [(0, 4)]
    assert limiter.held_back == 3
    assert limiter.superseded == 2


def test_queues_wait_each_for_itself_and_come_with_the_next_action() -> None:
    limiter = ChangeLimiter(ECN, 3, 100)
    limiter.submit(thresholds((0, 1)), 0)
    limiter.submit(thresholds((0, 2)), 50)

    assert plain(limiter.submit(thresholds((2, 5)), 60)) == [(2, 5)]
    assert plain(limiter.submit(thresholds((1, 7)), 100)) == [(0, 2), (1, 7)]


def test_setting_what_is_set_is_no_change() -> None:
    limiter = ChangeLimiter(ECN, 1, 100)
    limiter.submit(thresholds((0, 1)), 0)

    assert plain(limiter.submit(thresholds((0, 1)), 10)) == []
    assert limiter.held_back == 0
    assert plain(limiter.due(99)) == []
    # nor does it put off the next
    assert plain(limiter.submit(thresholds((0, 2)), 100)) == [(0, 2)]


def test_going_back_to_what_is_set_takes_the_waiting_change_away() -> None:
    limiter = ChangeLimiter(ECN, 1, 100)
    limiter.submit(thresholds((0, 1)), 0)
    limiter.submit(thresholds((0, 2)), 10)
    limiter.submit(thresholds((0, 1)), 20)

    assert plain(limiter.due(500)) == []
    assert (limiter.held_back, limiter.superseded) == (1, 1)


def test_asking_again_for_what_waits_counts_once() -> None:
    limiter = ChangeLimiter(ECN, 1, 100)
    limiter.submit(thresholds((0, 1)), 0)
    for t_ns in (10, 20, 30):
        limiter.submit(thresholds((0, 2)), t_ns)

    assert (limiter.held_back, limiter.superseded) == (1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_no_queue_changes_too_often_and_none_is_lost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queues, interval_ns = 4, 50
    limiter = ChangeLimiter(ECN, queues, interval_ns)
    changed_ns: dict[int, int] = {}
    holds: dict[int, int] = {}
    wanted: dict[int, int] = {}
    made = different = 0
    t_ns = 0
    for _ in range(300):
        t_ns += int(rng.integers(0, 40))
        if rng.random() < 0.7:
            picked = rng.permutation(queues)[: rng.integers(1, queues + 1)]
            changes = [(int(queue), int(rng.integers(1, 4))) for queue in picked]
            for queue, kmin in changes:
                different += wanted.get(queue) != kmin
                wanted[queue] = kmin
            ready = limiter.submit(thresholds(*changes), t_ns)
        else:
            ready = limiter.due(t_ns)
        for queue, kmin in plain(ready):
            assert t_ns - changed_ns.get(queue, -interval_ns) >= interval_ns
            assert holds.get(queue) != kmin
            changed_ns[queue], holds[queue] = t_ns, kmin
            made += 1
    for queue, kmin in plain(limiter.due(t_ns + interval_ns)):
        holds[queue] = kmin
        made += 1
    assert holds == wanted
    assert plain(limiter.due(t_ns + 2 * interval_ns)) == []
    # every change of mind was made, or counted as superseded, or took a waiting change back
    assert made + limiter.superseded <= different <= made + 2 * limiter.superseded


PORTS = ("leaf1:0", "leaf1:1", "spine1:0")
S = 1_000_000_000


def counters(
    sent: tuple[int, ...] = (0, 0, 0),
    dropped: tuple[int, ...] = (0, 0, 0),
    octets: tuple[int, ...] = (0, 0, 0),
    paused: tuple[int, ...] = (0, 0, 0),
) -> PortCounters:
    return PortCounters(
        *(np.array(part, dtype=np.int64) for part in (sent, dropped, octets, paused))
    )


def test_a_bound_that_is_just_reached_is_kept() -> None:
    breaker = CircuitBreaker(Guardrails(max_drop_share=0.05, max_pause_share=0.5), PORTS)
    breaker.feed(0, counters())
    breaker.feed(S, counters((950, 0, 0), (50, 0, 0), paused=(0, S // 2, 0)))


def test_drops_beyond_the_bound_name_port_share_and_bound() -> None:
    breaker = CircuitBreaker(Guardrails(max_drop_share=0.05), PORTS)
    breaker.feed(0, counters())
    with pytest.raises(
        GuardrailCrossed, match=r"port leaf1:1 dropped 5\.1% of its packets within 1 s"
    ):
        breaker.feed(S, counters((1000, 949, 0), (40, 51, 0)))


def test_pauses_beyond_the_bound_name_port_share_and_bound() -> None:
    breaker = CircuitBreaker(Guardrails(max_pause_share=0.5), PORTS)
    breaker.feed(0, counters())
    with pytest.raises(
        GuardrailCrossed, match=r"spine1:0 was paused for 60\.0% of the time.*50\.0%"
    ):
        breaker.feed(S, counters(paused=(0, 0, 6 * S // 10)))


def test_low_throughput_counts_while_traffic_is_offered_only() -> None:
    corridor = Guardrails(min_throughput_share=0.2)
    busy, idle = counters(octets=(10**6, 0, 0)), counters(octets=(10**6 + 10**5, 0, 0))
    breaker = CircuitBreaker(corridor, PORTS)
    breaker.feed(0, counters())
    breaker.feed(S, busy)
    breaker.feed(2 * S, idle, offered=False)

    breaker = CircuitBreaker(corridor, PORTS)
    breaker.feed(0, counters())
    breaker.feed(S, busy)
    with pytest.raises(
        GuardrailCrossed, match=r"10\.0% of the busiest window.*the limit is 20\.0%"
    ):
        breaker.feed(2 * S, idle)


def test_nothing_is_judged_before_a_whole_window_has_passed() -> None:
    breaker = CircuitBreaker(Guardrails(max_drop_share=0.05), PORTS)
    breaker.feed(0, counters())
    breaker.feed(S - 1, counters((500, 0, 0), (500, 0, 0)))
    with pytest.raises(GuardrailCrossed):
        breaker.feed(S, counters((500, 0, 0), (500, 0, 0)))


def test_a_bad_second_is_found_wherever_it_begins() -> None:
    # 10 % in one second, which straddles two seconds of the clock: 5 % in each
    breaker = CircuitBreaker(Guardrails(max_drop_share=0.06), PORTS)
    readings = []
    sent = dropped = 0
    for tick in range(26):
        readings.append((tick * S // 10, counters((sent, 0, 0), (dropped, 0, 0))))
        bad = 15 <= tick < 25
        sent += 90 if bad else 100
        dropped += 10 if bad else 0
    ends = [
        end for end in range(len(readings)) if left_corridor(breaker, *readings[end]) is not None
    ]
    # 7 of the 10 bad tenths are in the window that ends with reading 22
    assert ends[0] == 22


def left_corridor(
    breaker: CircuitBreaker, t_ns: int, reading: PortCounters
) -> GuardrailCrossed | None:
    try:
        breaker.feed(t_ns, reading)
    except GuardrailCrossed as left:
        return left
    return None


def test_a_few_packets_are_not_judged() -> None:
    breaker = CircuitBreaker(Guardrails(max_drop_share=0.05), PORTS)
    breaker.feed(0, counters())
    breaker.feed(S, counters((50, 0, 0), (49, 0, 0)))


def test_the_widest_corridor_is_never_left() -> None:
    corridor = Guardrails(max_drop_share=1.0, max_pause_share=1.0, min_throughput_share=0.0)
    breaker = CircuitBreaker(corridor, PORTS)
    breaker.feed(0, counters())
    breaker.feed(S, counters((0, 0, 0), (10**6, 0, 0), paused=(S, S, S)))


def test_counters_that_went_back_start_the_window_anew() -> None:
    breaker = CircuitBreaker(Guardrails(max_drop_share=0.05), PORTS)
    breaker.feed(0, counters((10**6, 10**6, 0), (10**5, 0, 0)))
    breaker.feed(S, counters((10, 10**6, 0), (5, 0, 0)))
    breaker.feed(2 * S - 1, counters((1000, 10**6, 0), (500, 0, 0)))
    with pytest.raises(GuardrailCrossed, match=r"33\.3%"):
        breaker.feed(2 * S, counters((1000, 10**6, 0), (500, 0, 0)))
