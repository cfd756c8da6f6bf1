"""Restoring real RED queues, in the virtual-time kernel: what is put back, and what stays."""

import pytest

from tests.programs import in_a_guest

pytestmark = pytest.mark.kernel

KILLS = 20

# Runs in the guest in place of its own program, on a built fabric.
PROGRAM = """
import json, os, random, signal, socket, time, traceback
from pathlib import Path
from orchestration.agent.linux import netlink, qdiscs
from orchestration.backends.emulated.system import send_message
from orchestration.backends.emulated.guest import prepare_process
from orchestration.backends.emulated.system import power_off
from orchestration.backends.emulated.job import read_job
from orchestration.backends.emulated.namespaces import new_namespace
from orchestration.backends.emulated.namespaces import Fabric
from orchestration.agent.safety import deadman, state
from orchestration.agent.main import Decoder, encode
from orchestration.agent.main import Agent
from orchestration.agent.linux.netlink import RouteSocket
from orchestration.agent.linux.qdiscs import Red

FOLDER = Path(os.environ["CLOSLOOP_JOB"])


def reds():
    with RouteSocket() as route:
        return [item for item in qdiscs.qdiscs(route) if item.kind == "red"]


def change_all(rng):
    with RouteSocket() as route:
        route.request([
            qdiscs.red_change(item.ifindex, item.handle, item.parent, kmin, 2 * kmin, 1 << 30)
            for item in reds() for kmin in [rng.randrange(1, 100_000)]
        ])


def restores(request):
    wanted = state.snapshot(request)
    change_all(random.Random(1))
    Path("/proc/sys/net/ipv4/ip_early_demux").write_text("1")
    before = len(state.differences(wanted, state.snapshot(request)))
    outcome = state.restore(wanted)
    again = state.restore(wanted)
    send_message(test="restore", before=before, differences=outcome["differences"],
        changed=len(outcome["changed"]), again=again["changed"], reds=len(reds()),
        same=state.snapshot(request) == wanted)


def foreign_red():
    # as tc makes one: weight 2^-9, no ECN flags of ours
    route = RouteSocket()
    item = reds()[0]
    theirs = Red(400_000, 30_000, 90_000, 9, 21, 10, 85_899_345, 1, 15)
    route.request([qdiscs.red_request(item.ifindex, item.handle, item.parent, theirs)])
    name = socket.if_indextoname(item.ifindex)
    wanted = state.snapshot({"interfaces": [name]})
    (found,) = [qdisc["red"] for qdisc in wanted["interfaces"][name] if "red" in qdisc]
    assert found == theirs._asdict(), found
    change_all(random.Random(2))
    outcome = state.restore(wanted)
    send_message(test="foreign", differences=outcome["differences"],
        same=state.snapshot({"interfaces": [name]}) == wanted)


def queued_packets():
    # a slow shaper on the loopback, so that a queue stands
    new_namespace(900)
    route = RouteSocket()
    lo = netlink.interface_index("lo")
    up = netlink.message(16, __import__("struct").pack("=BxHiII", 0, 0, lo, 1, 1))
    route.request([
        up,
        qdiscs.tbf(lo, qdiscs.TBF_HANDLE, qdiscs.TC_H_ROOT, 8_000, 2_000, 0),
        qdiscs.red(lo, qdiscs.LEAF_HANDLE, qdiscs.TBF_HANDLE + 1, 5_000, 9_000, 1 << 28, 100_000),
    ])
    wanted = state.snapshot({"interfaces": ["lo"]})
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(20):
        sender.sendto(bytes(900), ("127.0.0.1", 9))
    change_all(random.Random(3))
    (standing,) = reds()
    outcome = state.restore(wanted)
    (after,) = reds()
    red = qdiscs.red_parameters(after.options)
    # 40 s drain it
    time.sleep(40)
    late = state.restore(wanted)
    send_message(test="queued", backlog=standing.qlen, after=after.qlen, drops=reds()[0].drops,
        kmin=red.kmin_bytes, differences=outcome["differences"], late=late["differences"],
        same=state.snapshot({"interfaces": ["lo"]}) == wanted)


class Child:
    # an agent in a process of its own
    def __init__(self):
        to_read, self.to = os.pipe()
        self.back, back = os.pipe()
        self.decoder = Decoder()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.to)
            os.close(self.back)
            agent = Agent(to_read, back)
            signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
            agent.add(state.operations(agent))
            agent.add(deadman.operations(agent, FOLDER / "run"))
            agent.add({"change": lambda request: change_all(random.Random(request["seed"]))})
            agent.run()
            os._exit(0)
        os.close(to_read)
        os.close(back)
        self.read()

    def read(self):
        while True:
            piece = os.read(self.back, 1 << 20)
            for message in self.decoder.feed(piece):
                return message

    def call(self, op, **arguments):
        os.write(self.to, encode({"id": 1, "op": op, **arguments}))
        answer = self.read()
        assert "error" not in answer, answer
        return answer["ok"]

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.to)
        os.close(self.back)


def kills(request):
    rng = random.Random(4)
    good = fired = touched = 0
    for number in range(KILLS):
        agent = Child()
        wanted = agent.call("state.snapshot", **request)
        mine = {"nonce": f"{number:08x}"}
        agent.call(
            "deadman.arm", **mine, holder="test", after_s=2, snapshot=wanted, note=str(number)
        )
        for step in range(rng.randrange(1, 30)):
            agent.call("change", seed=step)
            agent.call("deadman.feed", **mine)
            time.sleep(rng.random() / 10)
        if rng.random() < 0.5:
            # in the middle of a change
            os.write(agent.to, encode({"id": 1, "op": "change", "seed": 99}))
        agent.end()
        touched += state.snapshot(request) != wanted
        time.sleep(4)
        again = Child()
        said = again.call("deadman.status")
        (record,) = said["records"]
        fired += said["armed"] is None and record["note"] == str(number)
        good += state.snapshot(request) == wanted and record["differences"] == []
        again.call("deadman.clear", **mine)
        again.end()
    send_message(test="kills", good=good, fired=fired, touched=touched)


def main():
    job = read_job(FOLDER)
    fabric = Fabric(job)
    switches = sorted({place for place, _ in job.plan.queue_locations})
    fabric.enter(switches[0])
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    request = {"interfaces": names, "sysctls": ["net/ipv4/ip_early_demux"]}
    restores(request)
    kills(request)
    foreign_red()
    queued_packets()


prepare_process()
try:
    main()
    send_message(stage="done")
except BaseException:
    traceback.print_exc()
    send_message(stage="failed")
power_off()
""".replace("KILLS", str(KILLS))


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the program says, by test."""
    script = tmp_path_factory.mktemp("safety") / "program.py"
    script.write_text(PROGRAM)
    return {message["test"]: message for message in in_a_guest(script) if "test" in message}


def test_changed_queues_and_sysctls_are_exactly_as_before_afterwards(said):
    found = said["restore"]
    assert found["before"] > found["reds"]
    assert found["differences"] == []
    assert found["same"]
    # thresholds and reported limit of each queue, and the sysctl
    assert found["changed"] == 2 * found["reds"] + 1
    assert found["again"] == []


def test_whenever_the_agent_is_killed_the_device_is_as_the_snapshot_says(said):
    assert said["kills"] == {"test": "kills", "good": KILLS, "fired": KILLS, "touched": KILLS}


def test_a_red_that_somebody_else_made_gets_its_weight_and_flags_back(said):
    assert said["foreign"] == {"test": "foreign", "differences": [], "same": True}


def test_packets_that_are_queued_stay_and_the_limit_waits_for_them(said):
    found = said["queued"]
    assert found["backlog"] > 15
    assert found["drops"] == 0
    # two seconds later the thresholds are right, and most packets still there
    assert found["kmin"] == 5_000
    assert found["after"] > 10
    (left,) = found["differences"]
    assert (left["what"], left["wanted"], left["found"]) == ("limit_bytes", 100_000, 0)
    # when it is empty, the limit is put back too
    assert found["late"] == []
    assert found["same"]
