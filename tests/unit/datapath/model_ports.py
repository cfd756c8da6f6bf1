"""The model's switches: ports with queues by class, the shared buffer, and pauses.

As port.c, buffer.c and pfc.c of the kernel's data path have them.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.unit.datapath.model_paths import next_hop, splitmix64

NEVER = 2**64 - 1
PS_PER_NS = 1000
PAUSE_BYTES = 60


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
    """One end of a cable, and what its peer has sent it about priorities."""

    def __init__(self, model, spec):
        self.model, self.spec, self.free_ps = model, spec, 0
        self.control = []
        self.stopped = {}  # stopped priorities: since when, until when
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
                since_ns, _ = self.stopped.get(priority, (now, now))
                until_ns = now + quanta_ns(count, self.spec.rate_bps)
                self.stopped[priority] = since_ns, until_ns
                self.frames_received[priority] += 1
            elif priority in self.stopped:
                self.resume(priority, now)
        self.obey(now)

    def run_out(self, now):
        for priority in [p for p, (_, until_ns) in self.stopped.items() if until_ns <= now]:
            self.resume(priority, now)
        self.obey(now)

    def resume(self, priority, now):
        self.paused_ns[priority] += now - self.stopped.pop(priority)[0]

    def run_out_ns(self):
        return min((until_ns for _, until_ns in self.stopped.values()), default=NEVER)

    def is_stopped(self, klass):
        return self.model.fabric.priority[klass] in self.stopped


class Queue:
    def __init__(self, limit_bytes, quantum_bytes):
        self.limit_bytes, self.quantum_bytes = limit_bytes, max(1, quantum_bytes)
        self.packets, self.deficit_bytes = deque(), 0
        self.kmin_bytes = self.kmax_bytes = 2**32 - 1
        self.backlog_bytes = self.tx_bytes = self.tx_packets = 0
        self.marked_packets = self.dropped_packets = self.max_p = 0


class SwitchPort(Port):
    """Queues by class; and, by class, what came in here and what the peer hears."""

    def __init__(self, model, spec, limits, switch):
        super().__init__(model, spec)
        self.switch, self.stream = switch, spec.seed
        self.queues = [Queue(*of) for of in zip(limits, model.fabric.quantum_bytes, strict=False)]
        self.turns = []  # classes with packets that are not stopped
        zeros = [0] * len(self.queues)
        self.shared_bytes, self.headroom_bytes = [*zeros], [*zeros]
        self.frames_sent, self.stopping_ns = [*zeros], [*zeros]
        self.stopping, self.refresh_ns = {}, NEVER  # classes: since when
        self.refresh_interval_ns = max(1, quanta_ns(model.fabric.quanta, spec.rate_bps) // 2)

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
        quanta_of = {self.model.fabric.priority[klass]: quanta for klass in classes}
        self.control.append(Packet("pause", PAUSE_BYTES, made_ns=now, quanta=quanta_of))
        self.model.pauses += quanta > 0

    def stop(self, klass, now):
        if klass not in self.stopping:
            if not self.stopping:
                self.refresh_ns = now + self.refresh_interval_ns
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
        self.refresh_ns = now + self.refresh_interval_ns


class Switch:
    def __init__(self, model, spec):
        self.model, self.spec, self.ports, self.arrivals = model, spec, [], []
        self.shared_bytes = self.headroom_bytes = self.lossless_drops = 0

    def begin(self, now):
        # a departure may make a pause frame of a port before it
        while any(port.settle(now) for port in self.ports):
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
        size, came_by, queue = packet.size_bytes, packet.came_by, out.queues[klass]
        if not self.model.fabric.shared_buffer:
            return queue.backlog_bytes + size <= queue.limit_bytes
        lossless = self.is_lossless(klass)
        held_bytes = came_by.shared_bytes[klass] if lossless else queue.backlog_bytes
        fits = size + self.shared_bytes <= self.spec.pool_bytes
        if fits and held_bytes + size <= self.threshold(klass):
            self.hold(came_by, klass, size, 0)
            return True
        if not lossless:
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
