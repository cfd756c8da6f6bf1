"""Congestion controls of the model's flows: policy_fixed.c and policy_dcqcn.c in Python."""

NEVER = 2**64 - 1
MBPS, NS_PER_US = 10**6, 1000
ONE = 1 << 30  # alpha
PARAMETERS = (
    *("time_reset_us", "byte_reset", "threshold", "ai_mbps", "hai_mbps", "gd", "min_dec_fac"),
    *("min_mbps", "max_mbps", "first_cnp_mbps", "g", "rtt_us", "period_us", "initial_alpha"),
    *("clamp", "clamp_after_time"),
)


class Fixed:
    def __init__(self, line_bps):
        self.line_bps = self.rate_bps = line_bps

    def happen(self, event, now, size_bytes, parameters):
        wanted_bps = parameters[0] * MBPS
        if event == "start" and wanted_bps:
            self.rate_bps = min(wanted_bps, self.line_bps)


class Dcqcn:
    """Parameters are those of policy_dcqcn.py, in its order."""

    def __init__(self, line_bps):
        self.line_bps = self.rate_bps = self.target_bps = line_bps
        self.limited = self.marked = False
        self.raised_by = None  # since the last reduction: time or bytes
        self.alpha = self.alpha_ns = self.first_ns = 0
        self.increase_ns = self.reduce_ns = NEVER
        self.by_time = self.by_bytes = self.sent_bytes = 0

    def happen(self, event, now, size_bytes, parameters):
        for name, value in zip(PARAMETERS, parameters, strict=False):
            setattr(self, name, value)
        self.most_bps = min(self.max_mbps * MBPS or self.line_bps, self.line_bps)
        if event == "start":
            self.rate_bps = self.target_bps = self.most_bps
        elif event in ("tx", "cnp", "settle") and self.limited:
            self.catch_up(now)
        if event == "tx" and self.limited:
            self.sent(size_bytes)
        elif event == "cnp":
            self.notified(now)
        elif event == "changed":
            self.changed()

    def catch_up(self, now):
        while True:
            times = (
                (self.alpha_ns if self.alpha or self.marked else NEVER, self.update_alpha),
                (self.reduce_ns, self.reduce),
                (self.increase_ns, self.increase_by_time),
            )
            at_ns, act = min(times, key=lambda item: item[0])
            if at_ns > now:
                return
            act(at_ns)

    def update_alpha(self, at_ns):
        self.alpha = self.alpha * self.g >> 10
        if self.marked:
            self.alpha += (ONE >> 10) * (1024 - self.g)
        self.marked = False
        self.alpha_ns += self.rtt_us * NS_PER_US

    def reduce(self, at_ns):
        if self.clamp or self.raised_by == "bytes" or (self.raised_by and self.clamp_after_time):
            self.target_bps = self.rate_bps
        cut = (self.rate_bps >> 10) * (self.alpha >> 20) >> self.gd << 10
        lowest = max(self.rate_bps // 100 * self.min_dec_fac, self.min_mbps * MBPS)
        self.rate_bps = max(self.rate_bps - cut, 0, lowest)
        self.by_time = self.by_bytes = self.sent_bytes = 0
        self.raised_by = None
        self.increase_ns, self.reduce_ns = at_ns + self.time_reset_us * NS_PER_US, NEVER

    def increase_by_time(self, at_ns):
        self.increase_ns += self.time_reset_us * NS_PER_US
        self.increase()
        self.by_time += 1
        self.raised_by = "time"

    def increase(self):
        most = max(self.by_time, self.by_bytes)
        least = min(self.by_time, self.by_bytes) if self.byte_reset else most
        if least > self.threshold:
            self.target_bps += self.hai_mbps * MBPS
        elif most >= self.threshold:
            self.target_bps += self.ai_mbps * MBPS
        self.target_bps = min(self.target_bps, self.most_bps)
        self.rate_bps = (self.rate_bps + self.target_bps) // 2

    def sent(self, size_bytes):
        self.sent_bytes += size_bytes
        while self.byte_reset and self.sent_bytes >= self.byte_reset:
            self.sent_bytes -= self.byte_reset
            self.increase()
            self.by_bytes += 1
            self.raised_by = "bytes"

    def notified(self, now):
        period_ns = self.period_us * NS_PER_US
        if not self.limited:
            self.limited, self.alpha = True, self.initial_alpha << 20
            self.alpha_ns = now + self.rtt_us * NS_PER_US
            self.first_ns, self.reduce_ns = now, now + period_ns
            self.target_bps = self.rate_bps
            if self.first_cnp_mbps:
                self.rate_bps = min(self.rate_bps, self.first_cnp_mbps * MBPS)
                self.target_bps = self.rate_bps
            return
        if not self.alpha and not self.marked:
            self.alpha_ns = now + self.rtt_us * NS_PER_US
        self.marked = True
        if self.reduce_ns == NEVER:
            self.reduce_ns = now + period_ns - (now - self.first_ns) % period_ns

    def changed(self):
        least_bps = min(self.min_mbps * MBPS, self.most_bps)
        if self.byte_reset:
            self.sent_bytes %= self.byte_reset
        self.rate_bps = max(min(self.rate_bps, self.most_bps), least_bps)
        self.target_bps = min(self.target_bps, self.most_bps)
        if not self.limited:
            self.rate_bps = self.target_bps = self.most_bps


POLICIES = {"fixed": Fixed, "dcqcn": Dcqcn}
