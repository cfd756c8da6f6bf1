"""Reads a capture by the rules of docs/load-balancing.md: by which port should each packet leave?

Written from that page and the papers alone: nothing of the product's choice of paths is used here.
A network is played packet by packet, in the order in which they came to the switches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

M64 = (1 << 64) - 1


def splitmix(z):
    z = z + 0x9E3779B97F4A7C15 & M64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ z >> shift) * factor & M64
    return z ^ z >> 31


class Chance:
    """A switch's stream of draws."""

    def __init__(self, seed, switch):
        self.state = splitmix(splitmix(seed) + switch & M64)

    def among(self, options):
        if len(options) == 1:
            return options[0]
        draw, self.state = splitmix(self.state), self.state + 0x9E3779B97F4A7C15 & M64
        return options[(draw >> 32) * len(options) >> 32]


@dataclass(frozen=True)
class Packet:
    t: int
    src: int
    dst: int
    sport: int
    dport: int
    protocol: int
    size: int  # with its Ethernet header

    @property
    def flow(self):
        return (self.src, self.dst, self.sport, self.dport, self.protocol)

    @property
    def key(self):
        ends = splitmix(self.src << 32 | self.dst)
        return splitmix(ends ^ (self.sport << 24 ^ self.dport << 8 ^ self.protocol))


@dataclass
class Line:
    """A port's queue and its DRE register. Times of the line are in picoseconds."""

    rate: int
    framing: int
    waiting: deque = field(default_factory=deque)
    free: int = 0
    register: int = 0
    decayed: int = 0

    def put(self, t, size):
        start = max(self.free, t * 1000)
        self.free = start + (size + self.framing) * 8 * 10**12 // self.rate
        self.waiting.append((start, size))

    def queued(self, t):
        while self.waiting and self.waiting[0][0] <= t * 1000:
            self.waiting.popleft()
        return sum(size for _, size in self.waiting)

    def decay(self, t, period):
        for _ in range(min(t // period - self.decayed, 200)):
            self.register -= self.register // 8
        self.decayed = t // period

    def metric(self, t, tau):
        self.decay(t, tau // 8)
        return min(7, self.register // max(1, self.rate * tau // (8 * 10**9) // 8))


class Flowlets:
    """A table of entries: who has one, and when it begins anew."""

    def __init__(self, entries, timeout):
        self.entries, self.timeout = entries, timeout
        self.at = {}  # place: [flow, time of its last packet, port]

    def find(self, packet):
        """Return the packet's entry, and whether it is new; None if the table is full."""
        places = [(packet.key % self.entries) ^ n for n in range(4)]
        for place in places:
            if place in self.at and self.at[place][0] == packet.flow:
                return self.at[place], False
        for place in places:
            if place not in self.at or packet.t - self.at[place][1] > self.timeout:
                self.at[place] = [packet.flow, packet.t, None]
                return self.at[place], True
        return None, False


@dataclass
class Header:
    """What CONGA has in a packet, for one tier."""

    tag: int | None = None
    extent: int = 0
    back: tuple[int, int] | None = None  # a tag and its metric


class Switch:
    def __init__(self, number, seed, tier, lines, ups, spec, timeout):
        self.chance, self.tier, self.spec = Chance(seed, number), tier, spec
        self.lines, self.ups = lines, ups  # by port; `ups` in order
        self.table = None if spec.kind == "spray" else Flowlets(spec.entries, timeout)
        self.last, self.turn, self.best = {}, 0, None
        self.heard, self.toward, self.told = {}, {}, {}
        self.flowlets = self.reroutes = self.overflows = 0
        self.by_hash = False  # whether the last packet went by its flow's hash

    def route(self, packet, former, partner):
        t, tau = packet.t, self.spec.dre_time_ns
        if self.spec.route_by == "round-robin":
            self.turn += 1
            return self.ups[(self.turn - 1) % len(self.ups)]
        if self.spec.route_by == "drill":
            tried = [self.chance.among(self.ups), self.chance.among(self.ups)]
            tried += [self.best] if self.best is not None else []
            self.best = min(tried, key=lambda port: self.lines[port].queued(t))
            return self.best
        if self.spec.route_by == "conga":
            cost = {
                port: max(self.lines[port].metric(t, tau), self.believed(partner, tag, t))
                for tag, port in enumerate(self.ups)
            }
            good = [port for port in self.ups if cost[port] == min(cost.values())]
            return former if former in good else self.chance.among(good)
        return self.chance.among(self.ups)

    def choose(self, packet, ecmp, partner=None):
        self.by_hash = False
        if self.table is None:
            port = self.route(packet, self.last.get(packet.flow), partner)
            self.flowlets += 1
            self.reroutes += self.last.get(packet.flow, port) != port
            self.last[packet.flow] = port
            return port
        entry, new = self.table.find(packet)
        if entry is None:
            self.overflows += 1
            self.by_hash = True
            return ecmp
        _, before, former = entry
        port = former
        if new or packet.t - before > self.table.timeout:
            self.by_hash = new and self.spec.route_by == "random"
            port = ecmp if self.by_hash else self.route(packet, former, partner)
            self.flowlets += 1
            self.reroutes += former is not None and port != former
        entry[1:] = [packet.t, port]
        return port

    # CONGA's bookkeeping

    def believed(self, partner, tag, t):
        value, heard = self.toward.get((partner, tag), (0, 0))
        age = t - heard
        if age > self.spec.metric_age_ns:
            value -= 1 + (age - self.spec.metric_age_ns) // 1_000_000
        return max(0, value)

    def hear(self, partner, header, t):
        if header.tag is not None:
            value, news = self.heard.get((partner, header.tag), (None, False))
            self.heard[partner, header.tag] = (header.extent, news or value != header.extent)
        if header.back is not None:
            tag, metric = header.back
            self.toward[partner, tag] = (metric, t)

    def tell(self, partner, port):
        """Return the header of a packet that goes up by a port."""
        known = sorted(tag for of, tag in self.heard if of == partner)
        after = self.told.get(partner, 0)
        turn = [t for t in known if t > after] + [t for t in known if t <= after]
        news = [tag for tag in turn if self.heard[partner, tag][1]] + turn
        header = Header(self.ups.index(port))
        if news:
            value, _ = self.heard[partner, news[0]]
            header.back = (news[0], value)
            self.heard[partner, news[0]] = (value, False)
            self.told[partner] = news[0]
        return header
