"""The model's hosts: NICs, and flows that go back N.

As nic.c, queue_pair.c and roce_packets.c of the kernel's data path have them.
"""

from collections import deque

from tests.unit.datapath.model_ports import NEVER, PS_PER_NS, Packet, Port, ns_of

MAX_TIMED = 16
# Ethernet, IPv4, UDP, base transport header, invariant CRC
HEADER_BYTES = 14 + 20 + 8 + 12 + 4
ACK_BYTES, CNP_BYTES = HEADER_BYTES + 4, HEADER_BYTES + 16


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
