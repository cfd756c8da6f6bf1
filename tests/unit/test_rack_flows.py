"""Flows of a rack by the hosts' own socket driver, on loopback addresses in one process."""

import os
import signal
import socket
import time

import pytest

from inventory.files import load_testbed
from inventory.rack import Access, Rack
from orchestration.device.agent.main import OperationError
from orchestration.device.errors import DeviceError, DeviceGone
from orchestration.device.fleet import answered, gather
from orchestration.model.trial import SingleFlowSpec
from orchestration.studies.bench.outcome import bench_trial
from traffic.drivers.host_sockets import operations
from traffic.drivers.rack import RackFlows
from traffic.schedule import make_schedule

SO_RCVBUFFORCE, TCP_REPAIR = 33, 19


class Agent:
    """A host's agent in this process: for the driver, which nobody waits for, and for a fleet."""

    def __init__(self, host):
        self.device = host
        self.does = operations(self)
        self.gone = False

    def at_end(self, do):
        self.end = do

    def post(self, op, **arguments):
        if self.gone:
            raise DeviceGone(self.device, "its agent ended")
        self._request = {"op": op, **arguments}
        return 0

    def result(self, number, timeout_s=0):
        try:
            return self.does[self._request["op"]](self._request)
        except OperationError as error:
            raise DeviceError(self.device, str(error)) from error


class Fleet:
    """Hosts whose agents are here; after a step, a host may lose its driver, or its agent, too."""

    def __init__(self, hosts, dies="", after="", agent_too=False):
        self.agents = {host: Agent(host) for host in hosts}
        self._dies, self._after, self._agent_too = dies, after, agent_too

    def ask(self, op, requests):
        found = gather({host: (self.agents[host], (op, said)) for host, said in requests.items()})
        if op == "flows.load":
            self._pids = found
        if op == self._after:
            os.kill(self._pids[self._dies], signal.SIGKILL)
            self.agents[self._dies].gone = self._agent_too
        return answered(found)

    def end(self):
        for agent in self.agents.values():
            agent.end()


def connect(fleet, before=lambda near, far: None):
    testbed = load_testbed("graphcc")
    access = {device.name: Access(device.name, "192.0.2.1") for device in testbed.devices}
    rack = Rack("here", testbed, access, fabric_prefix="127.64.0.0/12")
    trial = bench_trial((SingleFlowSpec("h1", "h9", 1_000, 0),), 1_000_000)
    flows = RackFlows(trial, rack, make_schedule(trial, testbed), fleet)
    before(flows._flows.near[0], flows._flows.far[0])
    try:
        flows.connect({})
        return flows.records()
    finally:
        fleet.end()


def test_flows_are_connected():
    assert connect(Fleet(["h1", "h9"])).retransmits.tolist() == [0]


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


def leave_lingering(near, far):
    """Leave a connection at `far` that has heard all data and of which `near` knows nothing more.

    The next one's first sequence number, which goes by the clock, is in its window.
    """
    large = 1 << 23
    with socket.socket() as listener, socket.socket() as sender:
        for end in (listener, sender):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 28)
        listener.bind(far)
        listener.listen()
        sender.bind(near)
        began = time.monotonic()
        sender.connect(far)
        receiver = listener.accept()[0]
        for _ in range(large >> 16):
            sender.sendall(bytes(1 << 16))
            assert len(receiver.recv(1 << 16, socket.MSG_WAITALL)) == 1 << 16
        receiver.close()
        assert sender.recv(1) == b""
        time.sleep(0.1)  # until the end is acknowledged
        # a socket under repair goes without a packet (tcp_close)
        sender.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    # a first sequence number is one higher every 64 ns (secure_tcp_seq)
    time.sleep(max(0.0, began + large * 64e-9 + 0.1 - time.monotonic()))


@pytest.mark.root
def test_what_lingers_of_an_earlier_trial_refuses_nothing():
    assert connect(Fleet(["h1", "h9"]), leave_lingering).retransmits.tolist() == [0]
