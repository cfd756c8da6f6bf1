"""A policy as a host's pacing: what the program makes of TCP's events, by its C; its versions."""

import ctypes
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from collectors.bpf.policy import HEADERS
from orchestration.agent.main import OperationError
from orchestration.agent.policies import pcc
from orchestration.agent.policies.pacing import COUNTS, FLOW_BYTES, name_of
from orchestration.agent.policies.policy import Policies
from orchestration.policies.compile import compile_model
from orchestration.policies.pacing import build as pacing
from orchestration.policies.pacing.build import pacing_version
from tests.unit.compiled_policies import RECORDED
from tests.unit.policy_library import NACK, RTT, START, TIMEOUT, Flow, Policy

ACTIVE, RTO, AGAIN, STATE, ROUND_TRIP, CLOSED = 4, 8, 9, 10, 12, 7
PEER, FABRIC, MASK = 0x0A0113C6, 0x000012C6, 0x0000FEFF  # 198.19.1.10, 198.18.0.0/15 on the wire
LINE_BPS, PARAMETERS, MSS = 10_000_000_000, (64, 1500, 12_000, 1_000), 1448


class Context(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("op", "arg", "arg1", "arg2", "arg3")]
    _fields_ += [(name, ctypes.c_uint32) for name in ("family", "remote_ip4", "local_ip4")]
    _fields_ += [("ip6", ctypes.c_uint32 * 8)]
    _fields_ += [(name, ctypes.c_uint32) for name in ("remote_port", "local_port", "full", "cwnd")]
    _fields_ += [(name, ctypes.c_uint32) for name in ("srtt_us", "flags", "state", "rtt_min")]
    _fields_ += [(name, ctypes.c_uint32) for name in ("ssthresh", "rcv", "nxt", "una", "mss")]


class Config(ctypes.Structure):
    _fields_ = [("line_bps", ctypes.c_uint64), ("prefix", ctypes.c_uint32)]
    _fields_ += [("mask", ctypes.c_uint32), ("parameters", ctypes.c_uint32 * 24)]
    _fields_ += [("one_by_one", ctypes.c_uint32), ("unused", ctypes.c_uint32)]
    _fields_ += [(name, ctypes.c_uint64) for name in COUNTS]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The program's C as a library, and the policy's own."""
    folder = tmp_path_factory.mktemp("pacing")
    compile_model(RECORDED, "c", folder / "mine.c")
    harness = Path(__file__).parents[1] / "pacing_harness.c"
    where = [f"-I{HEADERS}", f"-I{Path(pacing.__file__).parent}", "-shared", "-fPIC", "-O2"]
    quiet = ["-Wall", "-Werror", "-Wno-unused-parameter", "-fsanitize=undefined"]
    quiet += ["-fno-sanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    made = folder / "pacing.so"
    argv = ["gcc", *where, *quiet, f"-DCL_SOURCE=<{folder}/mine.c>", "-o", made, harness]
    subprocess.run(argv, check=True)
    subprocess.run(["gcc", *where, "-o", folder / "mine.so", folder / "mine.c"], check=True)
    own = Policy.in_dll(ctypes.CDLL(str(folder / "mine.so")), "cl_policy_mine")
    return made, own, folder


class Connection:
    """A TCP connection under the program."""

    def __init__(self, made, **config):
        self._library = ctypes.CDLL(str(made))
        self.pacing = Config.in_dll(self._library, "pacing")
        # one library for all of them
        ctypes.memset(ctypes.byref(self.pacing), 0, ctypes.sizeof(self.pacing))
        self.pacing.line_bps, self.pacing.prefix, self.pacing.mask = LINE_BPS, FABRIC, MASK
        self.pacing.parameters[: len(PARAMETERS)] = PARAMETERS
        for name, value in config.items():
            setattr(self.pacing, name, value)
        self.put("there", 0)
        self.put("refuse", 0)
        self.put("former_rate", 0xFFFFFFFF)
        self.put("rate_set", 0xFFFFFFFF)

    def put(self, name, value, kind=ctypes.c_uint32):
        kind.in_dll(self._library, name).value = value

    @property
    def rate(self):
        return ctypes.c_uint32.in_dll(self._library, "rate_set").value

    def tell(self, op, now_ns=0, arg=0, **context):
        self.put("clock_ns", now_ns, ctypes.c_uint64)
        given = {"remote_ip4": PEER, "mss": MSS, "srtt_us": 30 << 3, **context}
        assert self._library.pace(ctypes.byref(Context(op=op, arg=arg, **given))) == 1


def test_rates_are_the_policys_to_the_bit_through_a_connections_life(compiled):
    made, policy, _ = compiled
    connection, flow = Connection(made), Flow(policy, PARAMETERS, LINE_BPS)
    connection.tell(ACTIVE, 1000)
    rates = [connection.rate == flow.tell(START, 1000) // 8]
    now_ns, drawn, told_ns = 1000, random.Random(3), 0
    for _ in range(3000):
        now_ns += drawn.randrange(5_000, 80_000)
        kind = drawn.choice([ROUND_TRIP] * 8 + [AGAIN, RTO])
        if kind == ROUND_TRIP:
            rtt_us = drawn.choice([12, 15, 17, 18, 20, 25, 40, 400])
            connection.tell(kind, now_ns, rtt_us)
            wanted = flow.tell(RTT, now_ns, rtt_ns=rtt_us * 1000)
        else:
            connection.tell(kind, now_ns)
            if kind == RTO or now_ns - told_ns >= 30_000:
                told_ns = now_ns
                wanted = flow.tell(TIMEOUT if kind == RTO else NACK, now_ns, rtt_ns=0)
        rates.append(connection.rate == wanted // 8)
    assert all(rates)
    assert connection.pacing.decisions > 2000
    assert connection.pacing.smoothed == 0


def test_a_flow_without_a_round_trip_keeps_its_rate_and_is_counted(compiled):
    made, _, _ = compiled
    connection = Connection(made)
    connection.tell(ACTIVE, 1000)
    connection.tell(ROUND_TRIP, 90_000, 0, srtt_us=0)
    assert connection.rate == LINE_BPS // 8
    connection.tell(STATE, 99_000, arg1=CLOSED)
    assert (connection.pacing.flows, connection.pacing.untimed) == (1, 1)
    connection.tell(ROUND_TRIP, 120_000, 500)  # it has ended
    assert connection.rate == LINE_BPS // 8


def test_other_networks_and_rates_of_their_own_stay(compiled):
    made, _, _ = compiled
    other = Connection(made)
    other.tell(ACTIVE, 1000, remote_ip4=0x0200000A)  # 10.0.0.2
    assert other.pacing.flows == 0
    own = Connection(made)
    own.put("former_rate", 1_000_000)
    own.tell(ACTIVE, 1000)
    assert own.rate in (0xFFFFFFFF, 1_000_000)
    for step in range(1, 40):
        own.tell(ROUND_TRIP, 1000 + step * 50_000, 12)
    assert own.rate in (0xFFFFFFFF, 1_000_000)


def test_kernels_that_tell_the_smoothed_time_only_and_refused_rates_are_counted(compiled):
    made, _, _ = compiled
    connection = Connection(made)
    connection.tell(ACTIVE, 1000)
    connection.tell(ROUND_TRIP, 900_000, 0, srtt_us=400 << 3)
    assert connection.rate < LINE_BPS // 8
    assert connection.pacing.smoothed == 1
    connection.put("refuse", 1)
    connection.tell(ROUND_TRIP, 9_000_000, 400)
    assert connection.pacing.refused == 1


def test_a_slow_flow_that_waits_for_its_second_packet_is_not_slowed_for_that(compiled):
    made, _, _ = compiled
    rates = {}
    for one_by_one in (0, 1):
        connection = Connection(made, one_by_one=one_by_one)
        connection.tell(ACTIVE, 1000)
        now_ns = 1000
        for rtt_us in [13] + [400] * 25:
            now_ns += 2_000_000
            connection.tell(ROUND_TRIP, now_ns, rtt_us)
        for _ in range(60):
            now_ns += 2_000_000
            gap_us = (MSS + 52) * 1_000_000 // connection.rate
            connection.tell(ROUND_TRIP, now_ns, 13 + gap_us)
        rates[one_by_one] = connection.rate
    assert rates[1] > 100 * rates[0], rates


def test_a_version_has_the_program_and_its_name_the_models_hash(compiled):
    _, _, folder = compiled
    made = pacing_version(
        folder / "mine.c", "mine", "0123456789ab", LINE_BPS, "198.18.0.0/15", ("eth0",), PARAMETERS
    )
    assert {name for _, name in made["maps"]} == {"flows"}
    assert made["data_bytes"] > FLOW_BYTES
    assert name_of(made["model"]) == "cl_0123456789ab"


class Kernel:
    """What is in force, as a kind of policy remembers it."""

    def __init__(self, path):
        self._path = path

    def refusals(self, version):
        return [("has no room", "make some")] if version["model"] == "big" else []

    def put(self, version):
        if version and version["model"] == "bad":
            raise OperationError("the kernel refuses the program")
        self._path.write_text(version["model"] if version else "")
        if version and version["model"] == "fatal":
            os.kill(os.getpid(), signal.SIGKILL)
        return self.status()

    def status(self):
        return {"model": self._path.read_text() if self._path.exists() else ""}


@pytest.fixture
def policies(tmp_path):
    return Policies(tmp_path / "lib" / "policy", {"pacing": Kernel(tmp_path / "kernel")})


def version(model):
    return {"kind": "pacing", "name": "edge", "model": model}


def deploy(policies, model):
    return policies.deploy({"version": version(model), "holder": "ann"})


def test_versions_are_undone_one_by_one_and_leave_nothing(policies, tmp_path):
    deploy(policies, "a")
    deploy(policies, "b")
    assert policies.undo({"holder": "ann", "name": "edge"})["reports"] == {"model": "a"}
    with pytest.raises(OperationError, match="'edge', not 'other'"):
        policies.undo({"holder": "ann", "name": "other"})
    assert policies.undo({"holder": "ann"})["reports"] == {"model": ""}
    assert not (tmp_path / "lib").exists()
    with pytest.raises(OperationError, match="no policy was deployed"):
        policies.undo({"holder": "ann"})


def test_what_is_refused_leaves_the_former_version_in_force(policies):
    deploy(policies, "a")
    assert policies.check({"version": version("big")}) == [["has no room", "make some"]]
    with pytest.raises(OperationError, match="refuses the program"):
        deploy(policies, "bad")
    said = policies.status()
    assert said["reports"] == {"model": "a"}
    assert [item["model"] for item in said["stack"]] == ["a"]
    assert said["interrupted"] is None


@pytest.mark.parametrize("verb", ["undo", "restore"])
def test_a_kill_in_the_middle_is_known_and_put_right(policies, tmp_path, verb):
    deploy(policies, "a")
    child = os.fork()
    if child == 0:
        deploy(policies, "fatal")
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert policies.status()["interrupted"]["holder"] == "ann"
    assert policies.status()["reports"] == {"model": "fatal"}
    assert "was interrupted" in policies.check({"version": version("c")})[0][0]
    with pytest.raises(OperationError, match="was interrupted"):
        deploy(policies, "c")
    left = {"undo": "a", "restore": ""}[verb]
    assert getattr(policies, verb)({"holder": "ann"})["reports"] == {"model": left}
    assert policies.status()["interrupted"] is None


HEAD = "Device type:        BlueField3\n\nConfigurations:   Default    Current    Next Boot\n"


@pytest.mark.parametrize(
    ("code", "said", "refused"),
    [
        (0, HEAD + "*   USER_PROGRAMMABLE_CC   False(0)   True(1)   True(1)\n", ""),
        (0, HEAD + "    USER_PROGRAMMABLE_CC   False(0)   False(0)   False(0)\n", "is off"),
        (0, HEAD + "*   USER_PROGRAMMABLE_CC   False(0)   False(0)   True(1)\n", "power cycle"),
        (3, "-E- The Device doesn't support USER_PROGRAMMABLE_CC parameter\n", "has no USER_PROG"),
    ],
)
def test_what_the_firmware_lacks_is_said_by_name(monkeypatch, code, said, refused):
    monkeypatch.setattr(pcc, "run", lambda *_: (code, said, ""))
    found = pcc._firmware("mlx5_0")
    assert (refused in found[0][0]) if refused else found == []
