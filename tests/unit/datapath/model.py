"""The packet engine once more: slow, in plain Python, and written apart from it.

Its law is docs/order-of-events.md, and for what one device does the kernel's data path: port.c,
buffer.c, pfc.c, nic.c, queue_pair.c, roce_packets.c. It takes what api.h declares, under the same
names, and gives objects with the fields declared there. A device has an event whenever a packet
begins to leave it or arrives at it, or a timer of it is due: nothing is worked out later. It has no
watchdog.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.unit.datapath.model_paths import next_hop, splitmix64
from tests.unit.datapath.model_policies import POLICIES

NEVER = 2**64 - 1
PS_PER_NS = 1000
MAX_TIMED = 16
# Ethernet, IPv4, UDP, base transport header, invariant CRC
HEADER_BYTES = 14 + 20 + 8 + 12 + 4
ACK_BYTES, CNP_BYTES, PAUSE_BYTES = HEADER_BYTES + 4, HEADER_BYTES + 16, 60


def ns_of(ps):
    return -(-ps // PS_PER_NS)


def quanta_ns(quanta, rate_bps):
    return quanta * 512 * 10**9 // rate_bps


@dataclass(eq=False)
class Packet:
    kind: str  # data, ack, nak, cnp or pause
    size_bytes: int
    flow: Any = None
    psn: int = 0
    asks: bool = False
    is_marked: bool = False
    made_ns: int = 0  # what waits in a port's or a NIC's `control`
    quanta: dict = field(default_factory=dict)  # a pause frame's, by priority
    came_by: Any = None  # the port of the switch in which it is


class Port:
    """One end of a cable, and what its peer has told it about priorities."""

    def __init__(self, model, spec):
        self.model, self.spec, self.free_ps = model, spec, 0
        self.control = []
        self.told = {}  # stopped priorities: since when, until when
        self.frames_received, self.paused_ns = [0] * 8, [0] * 8

    def sending_ps(self, packet):
        total_bytes = packet.size_bytes + self.model.fabric.framing_bytes
        return total_bytes * 8 * 10**12 // self.spec.rate_bps

    def send(self, packet, start_ps):
        self.free_ps = start_ps + self.sending_ps(packet)
        self.model.hops += 1
        self.model.arrive(ns_of(start_ps) + self.spec.delay_ns, self.spec.peer, packet)

    def hear(self, quanta, now):
        for priority, count in quanta.items():
            if count:
                since_ns, _ = self.told.get(priority, (now, now))
                until_ns = now + quanta_ns(count, self.spec.rate_bps)
                self.told[priority] = since_ns, until_ns
                self.frames_received[priority] += 1
            elif priority in self.told:
                self.resume(priority, now)
        self.obey(now)

    def run_out(self, now):
        for priority in [p for p, (_, until_ns) in self.told.items() if until_ns <= now]:
            self.resume(priority, now)
        self.obey(now)

    def resume(self, priority, now):
        self.paused_ns[priority] += now - self.told.pop(priority)[0]

    def run_out_ns(self):
        return min((until_ns for _, until_ns in self.told.values()), default=NEVER)

    def is_stopped(self, klass):
        return self.model.fabric.priority[klass] in self.told


class Queue:
    def __init__(self, limit_bytes, quantum_bytes):
        self.limit_bytes, self.quantum_bytes = limit_bytes, max(1, quantum_bytes)
        self.packets, self.deficit_bytes = deque(), 0
        self.kmin_bytes = self.kmax_bytes = 2**32 - 1
        self.backlog_bytes = self.tx_bytes = self.tx_packets = 0
        self.marked_packets = self.dropped_packets = self.max_p = 0


class SwitchPort(Port):
    """Queues by class; and, by class, what came in here and what the peer is told."""

    def __init__(self, model, spec, limits, switch):
        super().__init__(model, spec)
        self.switch, self.stream = switch, spec.seed
        self.queues = [Queue(*of) for of in zip(limits, model.fabric.quantum_bytes, strict=False)]
        self.turns = []  # classes with packets that are not stopped
        zeros = [0] * len(self.queues)
        self.shared_bytes, self.headroom_bytes = [*zeros], [*zeros]
        self.frames_sent, self.stopping_ns = [*zeros], [*zeros]
        self.stopping, self.refresh_ns = {}, NEVER  # classes: since when

    def enter(self, packet, klass, now):
        queue = self.queues[klass]
        if not self.switch.admits(self, packet, klass, now):
            queue.dropped_packets += 1
            self.model.count("dropped", packet)
            return
        if not self.model.fabric.marks_departures:
            self.mark(queue, packet)
        if not self.turns:
            self.free_ps = max(self.free_ps, now * PS_PER_NS)
        queue.packets.append(packet)
        queue.backlog_bytes += packet.size_bytes
        if len(queue.packets) == 1 and not self.is_stopped(klass):
            self.join(klass)

    def join(self, klass):
        self.turns.append(klass)
        self.queues[klass].deficit_bytes = self.queues[klass].quantum_bytes

    def mark(self, queue, packet):
        above, width = queue.backlog_bytes - queue.kmin_bytes, queue.kmax_bytes - queue.kmin_bytes
        marks = above >= width
        if 0 <= above < width:
            marks = splitmix64(self.stream) >> 32 < queue.max_p * above // width
            self.stream += 0x9E3779B97F4A7C15
        if marks and packet.kind == "data" and packet.flow.spec.is_ecn_capable:
            packet.is_marked = True
            queue.marked_packets += 1

    def obey(self, now):
        if not self.turns:
            self.free_ps = max(self.free_ps, now * PS_PER_NS)
        for klass, queue in enumerate(self.queues):
            if klass in self.turns and self.is_stopped(klass):
                self.turns.remove(klass)
            elif klass not in self.turns and queue.packets and not self.is_stopped(klass):
                self.join(klass)

    def control_is_next(self):
        """Return whether a pause frame is next: one made before another packet can begin."""
        if not self.control or (self.turns and self.control[0].made_ns * PS_PER_NS > self.free_ps):
            return False
        self.free_ps = max(self.free_ps, self.control[0].made_ns * PS_PER_NS)
        return True

    def settle(self, now):
        """Send what is due by now; return whether there was anything."""
        any_sent = False
        while (is_control := self.control_is_next()) or self.turns:
            start_ps = self.free_ps
            if start_ps > now * PS_PER_NS:
                break
            self.send(self.control.pop(0) if is_control else self.next_packet(now), start_ps)
            any_sent = True
        return any_sent

    def next_packet(self, now):
        """Take the next packet, by deficit round robin."""
        while len(self.queues) > 1:
            queue = self.queues[self.turns[0]]
            if queue.packets[0].size_bytes <= queue.deficit_bytes:
                break
            queue.deficit_bytes += queue.quantum_bytes
            self.turns.append(self.turns.pop(0))
        klass = self.turns[0]
        queue, packet = self.queues[klass], self.queues[klass].packets.popleft()
        queue.deficit_bytes -= packet.size_bytes
        queue.backlog_bytes -= packet.size_bytes
        queue.tx_bytes += packet.size_bytes
        queue.tx_packets += 1
        if not queue.packets:
            self.turns.pop(0)
        if self.model.fabric.shared_buffer:
            self.switch.release(packet, klass, now)
        if self.model.fabric.marks_departures:
            self.mark(queue, packet)
        return packet

    def tell(self, classes, quanta, now):
        told = {self.model.fabric.priority[klass]: quanta for klass in classes}
        self.control.append(Packet("pause", PAUSE_BYTES, made_ns=now, quanta=told))
        self.model.pauses += quanta > 0

    def stop(self, klass, now):
        if klass not in self.stopping:
            if not self.stopping:
                self.refresh_ns = now + self.refresh_interval_ns()
            self.stopping[klass] = now
            self.frames_sent[klass] += 1
            self.tell([klass], self.model.fabric.quanta, now)

    def let_go(self, klass, now):
        self.stopping_ns[klass] += now - self.stopping.pop(klass)
        self.tell([klass], 0, now)
        if not self.stopping:
            self.refresh_ns = NEVER

    def refresh(self, now):
        for klass in self.stopping:
            self.frames_sent[klass] += 1
        self.tell(self.stopping, self.model.fabric.quanta, now)
        self.refresh_ns = now + self.refresh_interval_ns()

    def refresh_interval_ns(self):
        return max(1, quanta_ns(self.model.fabric.quanta, self.spec.rate_bps) // 2)


class Switch:
    def __init__(self, model, spec):
        self.model, self.spec, self.ports, self.arrivals = model, spec, [], []
        self.shared_bytes = self.headroom_bytes = self.lossless_drops = 0

    def begin(self, now):
        # a departure may make a pause frame of a port before it
        while any([port.settle(now) for port in self.ports]):
            pass

    def receive(self, port, packet, now):
        if packet.kind == "pause":
            port.hear(packet.quanta, now)
        else:
            packet.came_by = port
            next_hop(self, packet).enter(packet, packet.flow.spec.klass, now)

    def timers(self):
        for port in self.ports:
            yield port.run_out_ns(), port.run_out
            yield port.refresh_ns, port.refresh

    def next_departure_ps(self):
        busy = [port.free_ps for port in self.ports if port.turns or port.control]
        return min(busy, default=NEVER)

    def is_lossless(self, klass):
        return self.model.fabric.lossless >> klass & 1

    def threshold(self, klass):
        fabric, free_bytes = self.model.fabric, self.spec.pool_bytes - self.shared_bytes
        if fabric.xoff_bytes and self.is_lossless(klass):
            return fabric.xoff_bytes
        return fabric.alpha[klass] * free_bytes >> 16

    def admits(self, out, packet, klass, now):
        """Return whether a packet may enter, and count it if it may."""
        size, came_by, backlog_bytes = (
            packet.size_bytes,
            packet.came_by,
            out.queues[klass].backlog_bytes,
        )
        if not self.model.fabric.shared_buffer:
            return backlog_bytes + size <= out.queues[klass].limit_bytes
        held_bytes = came_by.shared_bytes[klass] if self.is_lossless(klass) else backlog_bytes
        fits = size + self.shared_bytes <= self.spec.pool_bytes
        if fits and held_bytes + size <= self.threshold(klass):
            self.hold(came_by, klass, size, 0)
            return True
        if not self.is_lossless(klass):
            return False
        came_by.stop(klass, now)
        if came_by.headroom_bytes[klass] + size > came_by.spec.headroom_bytes:
            self.lossless_drops += 1
            return False
        self.hold(came_by, klass, 0, size)
        return True

    def hold(self, came_by, klass, shared_bytes, headroom_bytes):
        self.shared_bytes += shared_bytes
        self.headroom_bytes += headroom_bytes
        if self.is_lossless(klass):
            came_by.shared_bytes[klass] += shared_bytes
            came_by.headroom_bytes[klass] += headroom_bytes

    def release(self, packet, klass, now):
        """Give back a packet's bytes, first those of the headroom, and let go whom that allows."""
        from_headroom = min(packet.came_by.headroom_bytes[klass], packet.size_bytes)
        self.hold(packet.came_by, klass, from_headroom - packet.size_bytes, -from_headroom)
        for port in self.ports:
            for one in sorted(port.stopping):
                held_bytes = port.shared_bytes[one]
                below = held_bytes + self.model.fabric.xon_offset_bytes <= self.threshold(one)
                if not port.headroom_bytes[one] and (below or not held_bytes):
                    port.let_go(one, now)


class Flow:
    """A message's sender and its receiver, with go-back-N."""

    def __init__(self, model, number, spec):
        self.model, self.number, self.spec = model, number, spec
        self.nic, self.to = model.ports[spec.src_port], model.ports[spec.dst_port]
        self.count = max(1, -(-spec.bytes // model.nics.payload_bytes))
        self.policy = model.policy(self.nic.spec.rate_bps)
        self.has_begun = self.is_waiting = self.asked_again = False
        self.next = self.acked = self.expected = self.next_ps = self.progress_ns = 0
        self.asked, self.asked_ns = 0, 0  # the first packet after the last that asked; when
        self.timed, self.cnp_ns = deque(), None  # packets that asked, with their times
        self.sent_ns = self.received_ns = self.done_ns = NEVER
        self.rtt_ns = self.rtt_sum_ns = self.rtts = self.probes = self.packets = 0
        self.resent = self.marked = self.cnps = self.naks = self.timeouts = 0

    def tell(self, event, now, size_bytes=0):
        self.policy.happen(event, now, size_bytes, self.nic.parameters)
        self.policy.rate_bps = min(max(self.policy.rate_bps, 10**6), self.nic.spec.rate_bps)

    def may_send(self, more=0):
        window, payload = self.model.nics.window_bytes, self.model.nics.payload_bytes
        within = not window or (self.next + more - self.acked) * payload < window
        return self.next < self.count and within

    def wait(self, not_before_ns):
        if not self.is_waiting and self.may_send():
            self.is_waiting = True
            self.next_ps = max(self.next_ps, not_before_ns * PS_PER_NS)

    def begin(self):
        self.has_begun, self.progress_ns = True, self.spec.start_ns
        self.tell("start", self.spec.start_ns)
        self.wait(self.spec.start_ns)

    def send(self, start_ps):
        """Return the next packet, whose first bit is sent at a time."""
        psn, at_ns, payload = self.next, ns_of(start_ps), self.model.nics.payload_bytes
        self.asked = min(self.asked, psn)
        # a window that closes before anybody was asked would never open
        closes = self.asked <= self.acked and not self.may_send(more=1)
        asks = psn == self.count - 1 or (psn + 1) % self.model.nics.ack_every == 0 or closes
        size = -(-min(payload, self.spec.bytes - psn * payload) // 4) * 4 + HEADER_BYTES
        if asks:
            self.asked_ns = at_ns if self.asked <= self.acked else self.asked_ns
            self.asked = psn + 1
            if len(self.timed) < MAX_TIMED:
                self.timed.append((psn, at_ns))
        self.next += 1
        self.packets += 1
        self.sent_ns = min(self.sent_ns, at_ns)
        self.tell("tx", at_ns, size)
        packet = Packet("data", size, self, psn, asks)
        pace = self.nic.sending_ps(packet) * self.nic.spec.rate_bps // self.policy.rate_bps
        self.next_ps, self.is_waiting = start_ps + pace, False
        self.wait(0)
        return packet

    def go_back(self, psn):
        if self.next > psn:
            self.resent += self.next - psn
            self.nic.resent += self.next - psn
            self.next = max(psn, self.acked)
        self.timed.clear()

    def time_out(self, now):
        self.progress_ns = now
        asked_long_ago = self.asked_ns + self.model.nics.timeout_ns <= now
        may_be_answered = self.is_waiting and not (self.asked > self.acked and asked_long_ago)
        if self.next == self.acked or may_be_answered:
            return
        self.timeouts += 1
        self.nic.timeouts += 1
        self.go_back(self.acked)
        self.tell("timeout", now)
        self.wait(now)

    def acknowledged(self, psn, now, is_nak):
        """The sender hears that packets before `psn` have come; a NAK, that `psn` is missing."""
        if self.done_ns != NEVER:
            return
        if psn > self.acked:
            self.acked, self.progress_ns = psn, now
        self.naks += is_nak
        if is_nak:
            self.go_back(psn)
        while self.timed and self.timed[0][0] < psn:
            timed_psn, sent_ns = self.timed.popleft()
            if timed_psn == psn - 1:
                self.rtt_ns = self.nic.rtt_ns = now - sent_ns
                self.rtt_sum_ns += self.rtt_ns
                self.rtts += 1
        self.next = max(self.next, self.acked)
        self.tell("nack" if is_nak else "ack", now)
        if self.acked == self.count:
            self.done_ns = now
        else:
            self.wait(now)

    def received(self, packet, now):
        """The receiver has a packet of data."""
        self.to.received_packets += 1
        self.to.out_of_order_packets += packet.psn > self.expected
        self.marked += packet.is_marked
        due = self.cnp_ns is None or now - self.cnp_ns >= self.to.cnp_interval_ns
        if packet.is_marked and due:
            self.cnp_ns = now
            self.to.answer("cnp", CNP_BYTES, self, now)
        if packet.psn > self.expected:
            if not self.asked_again:
                self.to.answer("nak", ACK_BYTES, self, now)
            self.asked_again = True
            return
        if packet.psn == self.expected:
            self.expected, self.asked_again = self.expected + 1, False
            if self.expected == self.count:
                self.received_ns = now
        if packet.asks:
            self.to.answer("ack", ACK_BYTES, self, now)


class Nic(Port):
    def __init__(self, model, spec):
        super().__init__(model, spec)
        self.ports, self.arrivals, self.flows = [self], [], []
        self.cnps = self.resent = self.rtt_ns = self.timeouts = 0
        self.received_packets = self.out_of_order_packets = 0

    def answer(self, kind, size_bytes, flow, now):
        self.control.append(Packet(kind, size_bytes, flow, flow.expected, made_ns=now))

    def candidates(self):
        """Return what may be sent: when, flows after control, number, what."""
        control = [(p.made_ns * PS_PER_NS, 0, n, p) for n, p in enumerate(self.control)]
        flows = [(f.next_ps, 1, f.number, f) for f in self.flows if f.is_waiting and f.may_send()]
        of_control = [item for item in control if not self.is_stopped(item[3].flow.spec.klass)]
        return of_control + [item for item in flows if not self.is_stopped(item[3].spec.klass)]

    def next_departure_ps(self):
        times = [max(self.free_ps, ps) for ps, *_ in self.candidates()]
        starts = [f.spec.start_ns * PS_PER_NS for f in self.flows if not f.has_begun]
        return min([*times, *starts], default=NEVER)

    def begin(self, now):
        for flow in self.flows:
            if not flow.has_begun and flow.spec.start_ns <= now:
                flow.begin()
        while (start_ps := self.next_departure_ps()) <= now * PS_PER_NS:
            due = [item for item in self.candidates() if item[0] <= start_ps]
            _, is_flow, _, what = min(due, key=lambda item: (item[1], item[0], item[2]))
            if not is_flow:
                self.control.remove(what)
            packet = what.send(start_ps) if is_flow else what
            self.model.count("sent", packet)
            self.send(packet, start_ps)

    def obey(self, now):
        self.free_ps = max(self.free_ps, now * PS_PER_NS)

    def receive(self, port, packet, now):
        flow = packet.flow
        if packet.kind == "pause":
            self.hear(packet.quanta, now)
            return
        self.model.count("received", packet)
        if packet.kind == "data":
            flow.received(packet, now)
        elif packet.kind == "cnp":
            flow.cnps += 1
            self.cnps += 1
            flow.tell("cnp", now)
        else:
            flow.acknowledged(packet.psn, now, packet.kind == "nak")

    def timers(self):
        yield self.run_out_ns(), self.run_out
        for flow in self.unfinished():
            yield flow.progress_ns + self.model.nics.timeout_ns, flow.time_out

    def unfinished(self):
        return [flow for flow in self.flows if flow.has_begun and flow.done_ns == NEVER]


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
        self.devices, self.ports, self.flows = {}, [], []
        for spec in ports:
            device = devices[spec.device]
            if not device.is_switch:
                self.ports.append(Nic(self, spec))
                self.devices[spec.device] = self.ports[-1]
                continue
            switch = self.devices.setdefault(spec.device, Switch(self, device))
            limits = limit_bytes[spec.first_queue :][: fabric.classes]
            self.ports.append(SwitchPort(self, spec, limits, switch))
            switch.ports.append(self.ports[-1])

    def post(self, policy, nics, flows):
        self.policy, self.nics = POLICIES[policy], nics
        for nic in self.all_nics():
            nic.parameters, nic.cnp_interval_ns = nics.parameters, nics.cnp_interval_ns
        self.flows = [Flow(self, number, spec) for number, spec in enumerate(flows)]
        for flow in self.flows:
            flow.nic.flows.append(flow)
            self.wake(flow.spec.start_ns, flow.nic.spec.device)

    def all_nics(self):
        return [port for port in self.ports if isinstance(port, Nic)]

    def wake(self, at_ns, device):
        heapq.heappush(self.events, (at_ns, device))

    def arrive(self, at_ns, number, packet):
        """Let a packet arrive at a port."""
        device = self.ports[number].spec.device
        arrival = (at_ns, number, next(self.order), self.ports[number], packet)
        heapq.heappush(self.devices[device].arrivals, arrival)
        self.wake(at_ns, device)

    def count(self, what, packet):
        self.packets[what] += packet.kind == "data"
        self.bytes[what] += packet.size_bytes

    def run(self, until_ns):
        """Let everything happen until a time, that included."""
        while self.events and self.events[0][0] <= until_ns:
            now, number = event = heapq.heappop(self.events)
            while self.events and self.events[0] == event:
                heapq.heappop(self.events)
            self.step(self.devices[number], now)
            self.wake(self.next_ns(self.devices[number]), number)
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
