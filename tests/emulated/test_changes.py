"""Changes of thresholds in the guest, all switches at once: what is set, skipped and refused."""

import pytest

from inventory.files import load_testbed
from tests.programs import in_a_guest

QUEUES = len(load_testbed("graphcc").queues)

# Runs in the guest in place of its own program, on a built fabric.
PROGRAM = """
import os, traceback
from pathlib import Path
import numpy as np
from orchestration.backends.emulated.linux_devices import LinuxQueues
from orchestration.backends.emulated.system import send_message
from orchestration.backends.emulated.guest import prepare_process
from orchestration.backends.emulated.system import power_off
from orchestration.backends.emulated.job import read_job
from orchestration.backends.emulated.namespaces import Fabric, NetlinkError
from orchestration.backends.emulated.rig import EmulatedRig
from orchestration.backends.emulated.traffic import Traffic
from orchestration.core.knobs import ECN


def count_sends(linux):
    sent = []
    send = linux.set
    linux.set = lambda queues, *rest: (sent.append(queues.tolist()), send(queues, *rest))
    return sent


def main():
    job = read_job(Path(os.environ["CLOSLOOP_JOB"]))
    fabric = Fabric(job)
    rig = EmulatedRig(job, fabric, Traffic())
    sent = count_sends(rig._queues)
    rng = np.random.default_rng(1)
    total = len(job.plan.queue_locations)
    wanted = {name: np.zeros(total, dtype=np.int64) for name in ("kmin_bytes", "kmax_bytes")}
    wanted["pmax"] = np.zeros(total)
    good = True
    for number in range(20):
        queues = rng.permutation(total) if number == 0 else rng.choice(total, 1 + number, False)
        kmin = rng.integers(0, 100_000, len(queues))
        change = ECN.change(queues, kmin, kmin + 1_000, rng.random(len(queues)))
        (applied,) = rig.apply((change,)).changes
        good &= applied.targets.tolist() == queues.tolist()
        seen = rig.observe().settings["ecn"]
        for name, values in wanted.items():
            values[queues] = change[name]
            good &= np.allclose(seen[name], values, rtol=1e-6)
            good &= np.allclose(applied[name], change[name], rtol=1e-6)
    send_message(test="set", good=bool(good))

    sent.clear()
    again = ECN.change(np.arange(total), *(wanted[n] for n in ("kmin_bytes", "kmax_bytes")),
                       wanted["pmax"])
    (same,) = rig.apply((again,)).changes
    again.kmin_bytes[3] += 1
    again.pmax[7] /= 2
    rig.apply((again,))
    send_message(test="skip", sent=sent, same=bool((same.kmin_bytes == wanted["kmin_bytes"] - (
        np.arange(total) == 3)).all()))

    switches = sorted({place for place, _ in job.plan.queue_locations})
    one, other = ([n for n, (place, _) in enumerate(job.plan.queue_locations) if place == switch]
                  for switch in switches[:2])
    mine = [*one[:3], *other[:2]]
    places = list(job.plan.queue_locations)
    places[mine[1]] = switches[0], 9_999
    places[mine[4]] = switches[1], 9_998
    changes = LinuxQueues(job.testbed, places, fabric.sockets)
    ones = lambda count: (np.full(count, 7_000), np.full(count, 8_000), np.full(count, 0.1))
    for queues in ([0, 1, 2], [2, 1], [3, 0, 4]):
        try:
            changes.set(np.array(mine)[queues], *ones(len(queues)))
            send_message(test="refused", queues=queues, error="")
        except NetlinkError as error:
            send_message(test="refused", queues=queues, error=str(error), index=error.index)
    changes.set(np.array(mine)[[0, 2, 3]], *ones(3))
    seen = rig.observe()
    kmin = seen.settings["ecn"]["kmin_bytes"][np.array(mine)[[0, 2, 3]]]
    send_message(test="after", kmin=kmin.tolist())


prepare_process()
try:
    main()
    send_message(stage="done")
except BaseException:
    traceback.print_exc()
    send_message(stage="failed")
power_off()
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the program says, by test."""
    folder = tmp_path_factory.mktemp("changes")
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return in_a_guest(script)


def of(said, test):
    return [message for message in said if message.get("test") == test]


def test_what_is_set_is_what_is_read_whatever_queues_change(said):
    assert of(said, "set") == [{"test": "set", "good": True}]


def test_only_queues_that_change_are_sent(said):
    (message,) = of(said, "skip")
    assert message["same"]
    assert message["sent"] == [[3, 7]]


def test_a_refused_change_raises_and_the_next_ones_work(said):
    refused = of(said, "refused")
    assert [message["queues"] for message in refused] == [[0, 1, 2], [2, 1], [3, 0, 4]]
    assert [message["index"] for message in refused] == [1, 1, 1]
    assert all("No such device" in message["error"] for message in refused)
    assert of(said, "after")[0]["kmin"] == [7_000] * 3
