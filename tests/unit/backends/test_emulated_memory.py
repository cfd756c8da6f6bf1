"""The memory that a guest is planned: enough for what a trial leaves in it, or a clear refusal."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.recorder import Recorder
from inventory.files import load_testbed
from orchestration.backends.emulated import backend, memory
from orchestration.backends.emulated.backend import EmulatedBackend
from orchestration.backends.emulated.memory import guest_memory_bytes
from orchestration.core.codec import flattened
from orchestration.core.errors import NotReadyError
from orchestration.core.knobs import ECN
from orchestration.core.ports import TrialRun
from orchestration.core.records import Applied, Observation, Schedule
from orchestration.core.roce import RoceSpec
from orchestration.core.signals import names
from orchestration.core.trial import HostSpec
from orchestration.kernel import boot
from orchestration.kernel.cache import Kernel
from tests.trials import trial_spec

MS = 1_000_000
READINGS = 640
TESTBED = load_testbed("graphcc")


def trial(duration_ns, sample_period_ns):
    return trial_spec(
        campaign="memory",
        testbed="graphcc",
        backend="emulated",
        traffic=(),
        duration_ns=duration_ns,
        drain_ns=200 * MS,
        sample_period_ns=sample_period_ns,
        action_period_ns=sample_period_ns,
    )


def kept_bytes(testbed, tell, table):
    """Memory that a recorder has taken once its table is made, and the table's bytes in a file."""
    tracemalloc.start()
    try:
        recorder = Recorder(testbed)
        for number in range(READINGS):
            tell(recorder, number)
        made = table(recorder)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return taken + sum(value.nbytes for value in flattened(vars(made)).values())


def planned_bytes(testbed, readings, decisions):
    return guest_memory_bytes(testbed, 0, readings, decisions) - guest_memory_bytes(testbed)


def test_a_host_whose_nic_makes_the_packets_is_planned_less_and_one_with_sockets_is_not():
    plain = trial(20 * MS, MS)
    roce = replace(plain, host=HostSpec("dcqcn", roce=RoceSpec()))
    mixed = replace(plain, host=HostSpec("dctcp", roce=RoceSpec()))
    planned = [memory.trial_memory_bytes(one, TESTBED, 0) for one in (plain, roce, mixed)]
    assert planned[0] - planned[1] == len(TESTBED.hosts) * 6 << 20
    assert planned[2] == planned[0]


@pytest.mark.parametrize("name", ["rlcc-7", "graphcc"])
def test_readings_fit_with_their_table_and_the_file_it_is_written_to(name):
    testbed = load_testbed(name)
    queues = len(testbed.queues)

    def tell(recorder, number):
        values = {name: np.zeros(queues, dtype=np.int64) for name in names("queue")}
        columns = [np.zeros(queues, dtype=np.int64) for _ in range(2)]
        settings = {"ecn": ECN.named(*columns, np.zeros(queues))}
        recorder.observed(Observation(number, np.zeros(queues, dtype=np.int64), values, settings))

    minimum = kept_bytes(testbed, tell, lambda recorder: recorder.samples()["queue"])
    assert minimum <= planned_bytes(testbed, READINGS, 0) <= 5 * minimum


@pytest.mark.parametrize("name", ["rlcc-7", "graphcc"])
def test_decisions_that_set_every_queue_fit_with_their_table_and_its_file(name):
    testbed = load_testbed(name)
    queues = len(testbed.queues)

    def tell(recorder, number):
        columns = [np.zeros(queues, dtype=np.int64) for _ in range(3)]
        targets, kmin, kmax = columns
        change = ECN.change(targets, kmin, kmax, np.zeros(queues))
        recorder.applied(number, number, Applied(number, (change,)))

    minimum = kept_bytes(testbed, tell, lambda recorder: recorder.changes()["ecn"])
    assert minimum <= planned_bytes(testbed, 0, READINGS) <= 2 * minimum


def test_a_trial_beyond_the_machine_is_refused_in_one_line_before_anything_is_written(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(backend, "require_kernel", lambda: Kernel(Path("/k/linux"), "7.3", "abc"))
    monkeypatch.setattr(boot, "available_memory_bytes", lambda: 4 << 30)
    empty = np.zeros(0, dtype=np.int64)
    schedule = Schedule(empty, empty, empty, empty, empty, ())
    with pytest.raises(NotReadyError) as caught:
        EmulatedBackend().run(TrialRun(trial(20_000 * MS, 100_000), TESTBED, schedule, tmp_path))
    message = caught.value.message
    assert "4096 MiB are available" in message
    assert "202,000 readings of 40 queues" in message
    assert "\n" not in message
    assert "sample_period" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []
    memory.require_memory(trial(200 * MS, 100_000), TESTBED, 0)
