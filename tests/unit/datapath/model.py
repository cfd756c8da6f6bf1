"""The packet engine once more: slow, in plain Python, and written apart from it.

Its law is docs/order-of-events.md, and for what one device does the kernel's data path. It takes
what api.h declares, under the same names, and has objects with the fields declared there. A device
has an event whenever a packet begins to leave it or arrives at it, or a timer of it is due: nothing
is worked out later. It has no watchdog.
"""

import heapq
import itertools

from tests.unit.datapath.model_nics import Flow, Nic
from tests.unit.datapath.model_policies import POLICIES
from tests.unit.datapath.model_ports import Switch, SwitchPort, ns_of


class Model:
    """A fabric. Times are ns, and NEVER for what has not happened.

    `fabric`, `devices`, `ports`, `nics` and `flows` have the fields of the structs of api.h.
    """

    def __init__(self, fabric, devices, ports, limit_bytes):
        self.fabric, self.now = fabric, 0
        self.events, self.order = [], itertools.count()
        self.hops = self.pauses = 0
        self.packets = dict.fromkeys(("sent", "received", "dropped"), 0)
        self.bytes = dict(self.packets)
        self.ports, self.flows = [], []
        self.devices, self.index = [], []  # switches and NICs; by port, the index of its own
        switches = {}
        for spec in ports:
            if devices[spec.device].is_switch:
                owner = switches.setdefault(spec.device, Switch(self, devices[spec.device]))
                limits = limit_bytes[spec.first_queue :][: fabric.classes]
                self.ports.append(SwitchPort(self, spec, limits, owner))
                owner.ports.append(self.ports[-1])
            else:
                owner = Nic(self, spec)
                self.ports.append(owner)
            if owner not in self.devices:
                self.devices.append(owner)
            self.index.append(self.devices.index(owner))

    def post(self, policy, nics, flows):
        self.policy, self.nics = POLICIES[policy], nics
        for nic in self.all_nics():
            nic.parameters, nic.cnp_interval_ns = nics.parameters, nics.cnp_interval_ns
        self.flows = [Flow(self, number, spec) for number, spec in enumerate(flows)]
        for flow in self.flows:
            flow.nic.flows.append(flow)
            self.wake(flow.spec.start_ns, self.index[flow.spec.src_port])

    def all_nics(self):
        return [port for port in self.ports if isinstance(port, Nic)]

    def wake(self, at_ns, index):
        heapq.heappush(self.events, (at_ns, index))

    def arrive(self, at_ns, number, packet):
        """Let a packet arrive at a port."""
        arrival = (at_ns, number, next(self.order), self.ports[number], packet)
        heapq.heappush(self.devices[self.index[number]].arrivals, arrival)
        self.wake(at_ns, self.index[number])

    def count(self, what, packet):
        self.packets[what] += packet.kind == "data"
        self.bytes[what] += packet.size_bytes

    def run(self, until_ns):
        """Let everything happen until a time, that included."""
        while self.events and self.events[0][0] <= until_ns:
            now, index = event = heapq.heappop(self.events)
            while self.events and self.events[0] == event:
                heapq.heappop(self.events)
            self.step(self.devices[index], now)
            self.wake(self.next_ns(self.devices[index]), index)
        self.now = until_ns

    def step(self, device, now):
        """Let everything happen that is due at a device at a time."""
        device.begin(now)
        while device.arrivals and device.arrivals[0][0] == now:
            *_, port, packet = heapq.heappop(device.arrivals)
            device.receive(port, packet, now)
            device.begin(now)
        for due_ns, act in device.timers():
            if due_ns <= now:
                act(now)
                device.begin(now)

    def next_ns(self, device):
        timers_ns = [due_ns for due_ns, _ in device.timers()]
        return min([ns_of(device.next_departure_ps()), *timers_ns])

    def set_thresholds(self, number, kmin_bytes, kmax_bytes, max_p):
        queue = self.queues()[number]
        queue.kmin_bytes, queue.kmax_bytes, queue.max_p = kmin_bytes, kmax_bytes, max_p

    def set_parameters(self, number, parameters, cnp_interval_ns):
        nic = self.ports[number]
        for event in ("settle", "changed"):
            for flow in nic.unfinished():
                flow.tell(event, self.now)
            nic.parameters, nic.cnp_interval_ns = parameters, cnp_interval_ns

    def queues(self):
        """Return the queues by their numbers, which have the fields of a reading."""
        found = {
            port.spec.first_queue + klass: queue
            for port in self.ports
            if isinstance(port, SwitchPort)
            for klass, queue in enumerate(port.queues)
        }
        return [found[number] for number in sorted(found)]
