"""Where the model's switches send a packet: the kernel's ECMP over shortest paths.

The hash is that of net/ipv4/route.c, fib_multipath_hash(), policy 3, with the switch's seed as both
words of its key: SipHash-2-4 (Aumasson, Bernstein, INDOCRYPT 2012) of the fields in
include/net/flow_dissector.h, struct flow_keys, then a word of include/linux/jhash.h.
"""

from collections import deque

M32, M64 = 2**32 - 1, 2**64 - 1
UDP, ROCE_PORT = 17, 4791


def splitmix64(state):
    """Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014."""
    z = (state + 0x9E3779B97F4A7C15) & M64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def siphash(data, key_0, key_1):
    """SipHash-2-4 of a multiple of eight bytes."""
    a, b = 0x736F6D6570736575 ^ key_0, 0x646F72616E646F6D ^ key_1
    c, d = 0x6C7967656E657261 ^ key_0, 0x7465646279746573 ^ key_1

    def rotate(x, by):
        return (x << by | x >> 64 - by) & M64

    def rounds(count):
        nonlocal a, b, c, d
        for _ in range(count):
            a, c = (a + b) & M64, (c + d) & M64
            b, d = rotate(b, 13) ^ a, rotate(d, 16) ^ c
            a = rotate(a, 32)
            a, c = (a + d) & M64, (c + b) & M64
            d, b = rotate(d, 21) ^ a, rotate(b, 17) ^ c
            c = rotate(c, 32)

    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    for word in [*words, (len(data) & 0xFF) << 56]:
        d ^= word
        rounds(2)
        a ^= word
    c ^= 0xFF
    rounds(4)
    return a ^ b ^ c ^ d


def jhash_2words(a, b):
    """Jenkins' final mix of two words, from an initial value of 0."""
    start = 0xDEADBEEF + (2 << 2)
    words = [(a + start) & M32, (b + start) & M32, start]
    turns = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))
    for to, by, left in turns:
        turned = (words[by] << left | words[by] >> 32 - left) & M32
        words[to] = ((words[to] ^ words[by]) - turned) & M32
    return words[2]


def flow_hash(seed, src, dst, udp_source):
    """Return the hash of a five-tuple and a switch's seed, which is the same there and back.

    Addresses and ports are compared as a little-endian machine reads them from the packet.
    """
    addresses = [address.to_bytes(4, "big") for address in (src, dst)]
    ports = [port.to_bytes(2, "big") for port in (udp_source, ROCE_PORT)]
    for pair in (addresses, ports):
        pair.sort(key=lambda raw: int.from_bytes(raw, "little"))
    keys = bytearray(48)
    keys[2] = UDP
    keys[28:32] = b"".join(ports)
    keys[36:44] = b"".join(addresses)
    key = seed << 32 | seed
    return jhash_2words(siphash(bytes(keys), key, key) & M32 or 1, 0) >> 1


def choose(hash_, count):
    """Return the number of the next hop (net/ipv4/fib_semantics.c, fib_rebalance())."""
    bounds = [((i << 31) + count // 2) // count - 1 for i in range(1, count + 1)]
    return next(i for i, bound in enumerate(bounds) if hash_ <= bound or i == count - 1)


def beyond(model, port):
    """Return the switch at the other end of a port's cable; None if that is a host."""
    return getattr(model.ports[port.spec.peer], "switch", None)


def distances(model, target):
    """Return the distance of each switch to the switch `target`, in cables."""
    found, todo = {target: 0}, deque([target])
    while todo:
        here = todo.popleft()
        for port in here.ports:
            there = beyond(model, port)
            if there is not None and there not in found:
                found[there] = found[here] + 1
                todo.append(there)
    return found


def next_hop(switch, packet):
    """Return the port by which a packet leaves a switch."""
    model, flow = switch.model, packet.flow
    src, dst = model.ports[flow.spec.src_port].spec, model.ports[flow.spec.dst_port].spec
    last = model.ports[(dst if packet.kind == "data" else src).peer]
    if last.switch is switch:
        return last
    distance = distances(model, last.switch)
    nearer = distance[switch] - 1
    ports = [port for port in switch.ports if distance.get(beyond(model, port)) == nearer]
    if len(ports) == 1:
        return ports[0]
    seed = switch.spec.ecmp_seed
    return ports[
        choose(flow_hash(seed, src.address, dst.address, flow.spec.udp_source), len(ports))
    ]
