"""Flows of a rack by the hosts' own socket driver, on loopback addresses in one process."""

import os
import signal
import socket
from pathlib import Path

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.agent.main import OperationError
from orchestration.agent.senders.driver_process import operations
from orchestration.bench.outcome import bench_trial
from orchestration.device.client import gather, require_answers
from orchestration.device.errors import DeviceError, DeviceGone
from traffic.drivers.rack import RackFlows
from traffic.patterns.single_flow import SingleFlowSpec
from traffic.schedule import make_schedule


class Agent:
    """A host's agent in this process: for the driver, which nobody waits for, and for a fleet."""

    def __init__(self, host):
        self.device = host
        self.does = operations(self)
        self.dies_after, self.wholly, self.gone = "", False, False
        self.says = {}

    def at_end(self, do):
        self.end = do

    def post(self, op, **arguments):
        if self.gone:
            raise DeviceGone(self.device, "its agent ended")
        self._request = {"op": op, **arguments}
        return 0

    def result(self, number, timeout_s=0):
        op = self._request["op"]
        if op in self.says:
            raise DeviceError(self.device, self.says[op])
        try:
            answer = self.does[op](self._request)
        except OperationError as error:
            raise DeviceError(self.device, str(error)) from error
        if op == "flows.load":
            self.pid = answer
        if op == self.dies_after:
            os.kill(self.pid, signal.SIGKILL)
            self.gone = self.wholly
        return answer


class Fleet:
    """Hosts whose agents are here; after a step, a host may lose its driver, or its agent, too."""

    def __init__(self, hosts, dies="", after="", agent_too=False):
        self.agents = {host: Agent(host) for host in hosts}
        if dies:
            self.agents[dies].dies_after, self.agents[dies].wholly = after, agent_too

    @property
    def pids(self):
        return {host: agent.pid for host, agent in self.agents.items()}

    def ask(self, op, requests):
        return require_answers(
            gather({host: (self.agents[host], (op, said)) for host, said in requests.items()})
        )

    def end(self):
        for agent in self.agents.values():
            agent.end()


def connect(fleet, after=lambda *_: None):
    testbed = load_testbed("graphcc")
    access = {device.name: Access(device.name, "192.0.2.1") for device in testbed.devices}
    rack = Rack("here", testbed, access, fabric_prefix="127.64.0.0/12")
    trial = bench_trial((SingleFlowSpec("h1", "h9", 1_000, 0),), 1_000_000)
    flows = RackFlows(trial, rack, make_schedule(trial, testbed), fleet, {})
    try:
        flows.connect({})
        after(fleet, flows)
        return flows.records()
    finally:
        fleet.end()


def test_flows_are_connected():
    assert connect(Fleet(["h1", "h9"])).retransmits.tolist() == [0]


def test_a_strangers_connection_is_closed_and_counts_for_no_flow():
    strangers = []

    class Visited(Agent):
        def result(self, number, timeout_s=0):
            answer = super().result(number, timeout_s)
            if self._request["op"] == "flows.listen":
                strangers.extend(map(socket.create_connection, listening(self.pid)))
            return answer

    fleet = Fleet(["h1", "h9"])
    fleet.agents["h9"] = Visited("h9")
    assert connect(fleet).retransmits.tolist() == [0]
    (stranger,) = strangers
    with pytest.raises(ConnectionResetError):
        stranger.recv(1)


def listening(pid):
    """Return the addresses at which a process listens, by way of loopback."""
    links = (os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in own]
    return [("127.0.0.1", port) for port in ports]


@pytest.mark.parametrize("step", ["flows.listen", "flows.load"])
def test_a_driver_that_died_is_named_by_its_host_and_not_by_the_one_it_refused(step):
    with pytest.raises(DeviceError) as caught:
        connect(Fleet(["h1", "h9"], dies="h9", after=step))
    assert caught.value.message.startswith("h9: ")
    assert "process died" in caught.value.message


def test_a_host_whose_agent_died_is_gone_and_not_one_whose_connections_are_refused():
    """So the trial is run again by itself."""
    with pytest.raises(DeviceGone) as caught:
        connect(Fleet(["h1", "h9"], dies="h9", after="flows.listen", agent_too=True))
    assert caught.value.message == "h9: its agent ended"


def test_a_host_that_says_why_is_named_and_not_one_that_it_refused():
    fleet = Fleet(["h1", "h9"])
    fleet.agents["h1"].says = {"flows.connect": "h9: [Errno 111] Connection refused"}
    fleet.agents["h9"].says = {"flows.connect": "[Errno 99] Cannot assign requested address"}
    with pytest.raises(DeviceError) as caught:
        connect(fleet)
    assert caught.value.message == "h9: [Errno 99] Cannot assign requested address"


def test_connections_of_a_driver_that_is_killed_do_not_linger():
    """Whether the other host can be reached or not."""

    def kill(fleet, flows):
        os.kill(fleet.pids["h1"], signal.SIGKILL)
        os.waitid(os.P_PID, fleet.pids["h1"], os.WEXITED | os.WNOWAIT)
        ports = {flows._flows.near[0][1], flows._flows.far[0][1]}
        table = Path("/proc/net/tcp").read_text().splitlines()[1:]
        assert not [line for line in table if int(line.split()[1].split(":")[1], 16) in ports]

    connect(Fleet(["h1", "h9"]), after=kill)
