"""The catalogue of findings: every code that a stamp may have, when it is given, and the remedy.

`make reference` writes docs/generated/findings.md from it. A finding is made where its check is:
`orchestration.analysis.stamp`, the backends, the importers.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# The rule by which a finding has its severity, for everybody who adds one.
SEVERITY_RULE = (
    "A finding is `invalid` if the trial was not the experiment that its file describes, or if its "
    "record contradicts itself or physics: its figures would be wrong, so they enter no average. "
    "It is a `warning` if the figures are right for what ran, and a reader should know something "
    "before believing what they seem to say. `either` names the case in which it is which. Bounds "
    "of `invalid` findings follow from the bytes that packets must carry: they are faults, not "
    "chance."
)


class Finding(NamedTuple):
    """A code that a stamp may have: by which check, how severe, when, and what to do then."""

    check: str
    code: str
    severity: Literal["invalid", "warning", "either"]
    when: str
    remedy: str


_I: Literal["invalid"] = "invalid"
_W: Literal["warning"] = "warning"
_E: Literal["either"] = "either"
_FASTER = "run fewer trials side by side, or use a larger `--scale`"
_FINDING_ROWS = (
    ("generator", "generator-late", _I,
     "a flow was sent more than 2 us from its start, on a real clock more than 1 ms (by the clock: "
     "a scale does not divide it, but 2 us stay allowed)",
     "free the senders' CPUs; in real time use a larger `--scale`"),
    ("generator", "programs-late", _W,
     "how late the flows are that programs send, which connect first",
     "none is needed; count from `sent_ns` if the delay matters"),
    ("flows", "flows-unfinished", _I, "a flow had not ended when the trial did",
     "lengthen `drain`, or lower the load"),
    ("flows", "flows-failed", _I, "a flow failed", "see the trial's events for the reason"),
    ("flows", "nothing-sent", _I, "no flow sends in the time that is measured",
     "raise the load, or lengthen `duration`"),
    ("sampler", "sampler-behind", _E,
     "a sampling period has no reading within half a period of it; on a real clock it is a warning "
     "for up to 5 % of them", "lengthen `sample_period`"),
    ("link rates", "link-over-rate", _I,
     "between two readings a link carried over 1 % and two packets more than its rate, all classes "
     "and framing counted; on a rack between the earliest and the latest moments of reading, and "
     "in real time with what its shaper makes up for",
     "correct the link's rate in the testbed; look for offloads"),
    ("link rates", "link-below-rate", _I,
     "a link carried over 1 % less than its rate while its queues held more than it could send; "
     "not where links go down on purpose",
     "correct the link's rate in the testbed; look for pauses and for a busy CPU"),
    ("link rates", "counters-disagree", _I, "a counter went backwards",
     "find what resets the device's counters during a trial"),
    ("bytes delivered", "counters-disagree", _I,
     "what the ports towards a host sent, less 66 bytes of headers a packet, is over 1 % away from "
     "its flows' payload and retransmits; 256 bytes a flow are allowed for handshakes, 4 KB a port "
     "for address resolution, and SACK options where a segment was lost",
     "end other traffic on the testbed"),
    ("drops", "drops", _W, "a switch dropped packets",
     "none, if losses are a part of the experiment; else more buffer, PFC, or less load"),
    ("starvation", "flows-starved", _E,
     "flows that last as long as the trial got less than a tenth of their fair share; a warning "
     "with `allow_starvation`",
     "look at drops, pauses, thresholds and `roce.timeout`; `allow_starvation: true` makes it a "
     "result"),
    ("finite flows", "finite-flows-starved", _W,
     "a twentieth or more of the flows that ended, have 100 packets or more and took as long as a "
     "lasting flow is judged by received, while others competed, less than a tenth of the least "
     "equal share of the ports by which they may leave; with TCP, too",
     "look at the rates that congestion control allowed (a slow recovery after a cut), at "
     "timeouts, drops and pauses"),
    ("load", "overload", _W,
     "less than 80 % of the payload offered in the measured time was delivered in it, and flows "
     "that began before its last tenth still hold over 10 % of it; only of load of which each half "
     "of that time has a tenth or more, without flows that last as long as the trial",
     "lower the load, lengthen `warm_up` and `duration`, or judge by the load that was delivered"),
    ("ideal times", "faster-than-ideal", _W, "a flow took less than 95 % of its ideal time",
     "correct the links' rates and delays in the testbed"),
    ("offloads", "offloads-on", _I, "segmentation offload was on somewhere",
     "`closloop provision` switches it off"),
    ("thresholds", "thresholds-clamped", _W, "a tuner set thresholds out of bounds",
     "keep kmax within the queue's buffer"),
    ("network", "trained-otherwise", _W,
     "the tuner's network was trained under other parameters than its scenario names now",
     "train it again"),
    ("marks", "marks-unanswered", _W,
     "a tuner set ECN thresholds, and no flow responds to CE packets: they had no effect",
     "use `congestion_control: dctcp` or `dcqcn`"),
    ("marks", "marks-missing", _W,
     "no packet was marked, although queues grew a frame or more beyond kmax between two readings: "
     "packets are not ECN-capable, or switches do not mark; on a rack readings of the last 1.5 s "
     "are not judged, as switches poll their counters",
     "set `net.ipv4.tcp_ecn`, or perftest's `traffic_class`; `closloop provision --verify` checks "
     "the switches"),
    ("signals", "signal-unmeasured", _I,
     "a tuner observes a signal of which no reading came; a plan refuses most of these",
     "use a backend or switch that measures it, or another tuner"),
    ("settings", "setting-unused", _W,
     "a setting changes nothing: load balancing where each pair of hosts that sends has one path, "
     "parameters of dcqcn where RoCE flows are under another control, settings of pauses without a "
     "lossless class, `min_rto` without TCP; not where the trial's labels name its control, as "
     "then another level of the factor uses it",
     "the text names it; arms that differ in it only are one experiment"),
    ("devices", "pfc-deadlock", _W, "queues stopped by pauses wait for each other in a circle",
     "break the circle of buffers: up-down routes, or a second lossless class"),
    ("devices", "pfc-storm", _W,
     "a queue was stopped for longer than the watchdog takes, by a peer that has no reason to",
     "look at that peer: a NIC that sends pauses all the time"),
    ("devices", "pfc-congestion", _W,
     "a queue was stopped for longer than the watchdog takes, by a queue that sends",
     "lower the marking thresholds or the load"),
    ("devices", "headroom-exceeded", _W,
     "packets of a lossless class found no headroom and were dropped",
     "give `switch: {headroom: …}` more, or leave it out"),
    ("devices", "flowlet-overflows", _W,
     "packets found no entry in a flowlet table, and took their flow's ECMP path",
     "give `load_balancing: {entries: …}` more"),
    ("devices", "sources", _W,
     "a number that a rack's switch lacks, or updates less often than it is sampled",
     "lengthen `sample_period`, or do without metrics of it"),
    ("devices", "settings-absent", _W, "a setting that a device's kernel does not have",
     "use a newer kernel there, if the setting matters"),
    ("devices", "programs", _W, "what the programs that sent flows said", "read it"),
    ("devices", "nics", _W, "what hosts' NICs lack or refused", "read it"),
    ("devices", "marks-untested", _W,
     "with RDMA, a RoCE NIC of which nobody knows whether marks slow it down: it has no counter of "
     "CNPs sent or received under a name that closloop knows, or there are fewer than three RoCE "
     "hosts to overload one",
     "compare the rates of two senders to one receiver by hand, or use a NIC and driver that count "
     "CNPs"),
    ("devices", "dctcp-program", _W,
     "cuts of windows that the kernel made without DCTCP's program", "none is needed: they were "
     "corrected"),
    ("devices", "kernel-lacks", _W,
     "what the machine's own kernel lacks, and what is done without",
     "load the kernel module, or run in virtual time"),
    ("devices", "read-back-differs", _I, "a threshold read back is not what was set",
     "see what the device rounds to; end other programs that configure it"),
    ("devices", "restored-with-differences", _E,
     "a device is not as it was before; a warning for what others changed",
     "`closloop restore`, or put back by hand what it names"),
    ("devices", "timer-gone", _I, "a device's dead-man's timer was gone at the end of the trial",
     "find what ends programs there at logout, or restarted the device"),
    ("devices", "cpu-busy", _I, "in real time, the machine's cores were too busy", _FASTER),
    ("devices", "softirq-busy", _I,
     "in real time, one core forwarded packets too much of the time", _FASTER),
    ("devices", "cpu-stolen", _I, "in real time, the hypervisor took the cores",
     "use a machine of one's own, or a larger `--scale`"),
    ("devices", "packets-squeezed", _I,
     "in real time, too many packets were left for later by a busy core", _FASTER),
    ("devices", "packets-lost", _I, "in real time, packets were dropped before a core took them",
     _FASTER),
    ("devices", "timers-late", _I, "in real time, processes woke too late", _FASTER),
    ("devices", "shapers-late", _I, "in real time, shapers sent too late", _FASTER),
    ("devices", "scale", _W, "what does not follow the scale of real time: CUBIC and BBR",
     "use another congestion control, or a scale of 1"),
    ("imported", "imported", _W, "always: others' results, from which files, and what they lack",
     "none is needed"),
    ("imported", "no-results", _I, "no file says how the flows ended",
     "give the file with `--fct`"),
    ("imported", "flows-unknown", _W, "only flows that ended are known: there is no file of flows",
     "give the file of flows"),
    ("imported", "start-rounded", _W, "flows started a nanosecond off, as the simulator rounds",
     "none is needed"),
    ("imported", "order-of-ends", _W, "the files' rows are not in the order in which flows ended",
     "none is needed, unless the file was edited"),
    ("imported", "queues-unknown", _W,
     "the files have queue lengths only of a time outside the run",
     "record queues from the start of the run"),
    ("imported", "parameters", _W,
     "the congestion control ran with other parameters than its name says",
     "compare it only with runs that have the same parameters"),
    ("imported", "window", _W, "each flow had a window, so that thresholds hardly change anything",
     "run without a window to compare thresholds"),
)  # fmt: skip
FINDINGS = tuple(Finding(*row) for row in _FINDING_ROWS)
