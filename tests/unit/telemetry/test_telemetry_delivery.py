"""Whatever a server answers: lines arrive in order, a trouble is said once, nothing is lost."""

import pytest

from collectors.sinks.influx import Answer
from orchestration.telemetry import delivery as delivery_module
from orchestration.telemetry.delivery import Delivery, GaveUp, Refused

LATER = Answer("later", "is in trouble (500)", "see the log")


class Scripted:
    """Answers as it is told, then well; keeps what it confirmed."""

    def __init__(self, *answers, max_lines=10**9):
        self.answers, self.max_lines = list(answers), max_lines
        self.stored, self.tried = [], 0

    def write(self, lines):
        self.tried += 1
        if len(lines) > self.max_lines:
            return Answer("too-large")
        answer = self.answers.pop(0) if self.answers else Answer("ok")
        if answer.meaning == "ok":
            self.stored += lines
        return answer


class Watch:
    """A clock that sleeping moves."""

    def __init__(self, monkeypatch):
        self.now_s = 0.0
        monkeypatch.setattr(delivery_module.time, "monotonic", lambda: self.now_s)

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def watch(monkeypatch):
    return Watch(monkeypatch)


def deliver(connection, watch, patient=lambda: True):
    said = []
    made = Delivery(
        connection, patient, lambda one: said.append((one.text, one.remedy)), watch.sleep
    )
    return made, said


def test_troubles_pass_in_order_and_each_is_said_once(watch):
    other = Answer("later", "cannot be reached", "start it")
    connection = Scripted(LATER, LATER, other, LATER, LATER, Answer("ok"), LATER)
    delivery, said = deliver(connection, watch)
    delivery.send(["a", "b"])
    delivery.send(["c"])
    assert connection.stored == ["a", "b", "c"]
    # After it was well, the same trouble is news again.
    assert said == [
        ("is in trouble (500)", "see the log"),
        ("cannot be reached", "start it"),
        ("is in trouble (500)", "see the log"),
    ]
    assert (delivery.points, delivery.trouble) == (3, "")


def test_waits_grow_and_end_somewhere(watch):
    delivery, _ = deliver(Scripted(*[LATER] * 12), watch)
    delivery.send(["a"])
    assert 30 < watch.now_s < 12 * 1.25 * 5


def test_the_servers_own_wait_is_kept(watch):
    delivery, _ = deliver(Scripted(Answer("later", "is busy (429)", "", 40.0)), watch)
    delivery.send(["a"])
    assert watch.now_s == pytest.approx(40, abs=1)


def test_a_request_that_is_too_large_is_halved_in_order(watch):
    connection = Scripted(max_lines=30)
    delivery, _ = deliver(connection, watch)
    lines = [str(n) for n in range(100)]
    delivery.send(lines)
    assert connection.stored == lines


def test_what_is_refused_is_not_tried_again(watch):
    connection = Scripted(Answer("refused", "does not accept the token (401)", "set it"))
    delivery, said = deliver(connection, watch)
    with pytest.raises(Refused) as refused:
        delivery.send(["a"])
    assert connection.tried == 1
    # whoever catches it says it: once
    assert (refused.value.answer.remedy, said) == ("set it", [])
    assert delivery.trouble == "does not accept the token (401)"


def test_patience_ends_between_tries(watch):
    delivery, _ = deliver(Scripted(*[LATER] * 1000), watch, lambda: watch.now_s < 20)
    with pytest.raises(GaveUp):
        delivery.send(["a"])
    assert 20 <= watch.now_s < 21
