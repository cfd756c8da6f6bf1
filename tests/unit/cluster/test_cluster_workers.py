"""What becomes of a trial on a cluster whose message does not arrive; Ray is a stand-in."""

from types import SimpleNamespace

from orchestration.cluster import workers
from orchestration.cluster.workers import MAX_LOSSES, ClusterWorkers
from orchestration.run.worker import Failed, Lost


class RayError(Exception):
    """As Ray's, of which the others are kinds."""


class GetTimeoutError(RayError):
    """As Ray's, when `get` has waited for its `timeout`."""


class StuckRay:
    """Says that messages are there, and never brings one."""

    exceptions = SimpleNamespace(
        RayError=RayError, GetTimeoutError=GetTimeoutError, RayTaskError=ZeroDivisionError
    )

    def __init__(self):
        self.cancelled = []

    def wait(self, streams, **options):
        return list(streams), []

    def get(self, message, timeout=None):
        assert timeout is not None, "it would wait for ever"
        raise GetTimeoutError

    def cancel(self, stream, *, force):
        self.cancelled.append((stream, force))


class Stream:
    """A task's messages, without an end."""

    def __next__(self):
        return "a message"

    def _stream_exhausted(self):
        return False


class EndedStream:
    """A cancelled task's stream: it has ended, and the task's own result never comes."""

    def __next__(self):
        raise AssertionError("Ray's would wait for ever")

    is_finished = __next__

    def _stream_exhausted(self):
        return True

    def completed(self):
        return "the task's result"


def test_a_message_that_does_not_arrive_is_a_lost_trial_which_runs_again(monkeypatch):
    ray, handed_out = StuckRay(), []
    made = object.__new__(ClusterWorkers)
    made._ray, made._immediate = ray, []

    def hand_out(task):
        task.stream = Stream()
        handed_out.append(task.stream)

    monkeypatch.setattr(made, "_submit", hand_out)
    task = workers._Task(job=None, begin_s=0.0)
    hand_out(task)
    made._tasks = [task]
    said = [message for _ in range(MAX_LOSSES) for _, message in made.messages(0.0)]
    assert [type(one) for one in said] == [Lost] * (MAX_LOSSES - 1) + [Failed]
    assert "did not arrive in 60 s" in said[0].reason
    assert ray.cancelled == [(stream, True) for stream in handed_out]
    assert len(made) == 0


def test_a_cancelled_task_whose_result_never_comes_is_not_waited_for():
    ray = StuckRay()
    made = object.__new__(ClusterWorkers)
    made._ray, made._immediate, made._force_close = ray, [], False
    task = workers._Task(job=None, begin_s=0.0)
    task.stream = EndedStream()
    made._tasks = [task]
    made.close()
    assert ray.cancelled == [(task.stream, False)]


def test_a_trial_whose_task_ended_without_its_result_is_lost_and_runs_again(monkeypatch):
    made = object.__new__(ClusterWorkers)
    made._ray, made._immediate = StuckRay(), []
    monkeypatch.setattr(made, "_submit", lambda task: None)
    task = workers._Task(job=None, begin_s=0.0)
    task.stream = EndedStream()
    made._tasks = [task]
    ((_, message),) = made.messages(0.0)
    assert isinstance(message, Lost)
