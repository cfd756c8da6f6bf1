"""What a run folder's tables, their columns, `trial.json` and the codes of stamps mean.

`make reference` writes the reference pages in docs/generated from it. Columns of samples and of
actions are signals and knobs; their meaning is declared with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

TABLES_MEAN: Mapping[str, str] = {
    "schedule": "What was to be sent, a row for each flow.",
    "flows": "When each flow was sent, when it ended, and how.",
    "ports": "Samples of every queue of every switch port, queue by queue.",
    "pauses": "Samples of every lossless class at a switch port, with PFC.",
    "switches": "Samples of every switch that has a shared buffer or chooses paths.",
    "hosts": "Samples of every host.",
    "flow_samples": "Samples of every flow of RoCE NICs, at the campaign's `flow_sample_period`. "
    "They are not sent to InfluxDB.",
    "actions": "Changes of ECN thresholds, as the queues confirmed them.",
    "actions_dcqcn": "Changes of DCQCN's parameters, as the hosts' NICs confirmed them.",
    "actions_flowlet_timeout": "Changes of flowlet timeouts, as the switches confirmed them.",
    "events": "Faults, warnings, changes of routes.",
}

# By the column's name, or `table.column` where a table has another meaning of it.
COLUMNS_MEAN: Mapping[str, str] = {
    "flow_id": "number of the flow, from 0, as in the schedule",
    "start_ns": "when the flow is to start",
    "src": "host that sends",
    "dst": "host that receives",
    "bytes": "payload",
    "class": "the traffic pattern that made it",
    "sent_ns": "when its first byte was handed to the sender's transport; null if it was not",
    "end_ns": "when the sender knew that the receiver had it all; null if it is not done",
    "fct_ns": "`end_ns - start_ns`, from the scheduled start: a generator that falls behind must "
    "not hide the waiting time; null if it is not done",
    "ideal_ns": "the time it takes alone at line rate, headers and base RTT counted",
    "flows.retransmits": "segments or packets sent again",
    "status": "done, unfinished, failed, or lasting: it was to send until the trial's end",
    "t_ns": "when the reading began",
    "device": "switch",
    "port": "port of the switch",
    "queue": "number of the traffic class, 0 where a port has one queue",
    "host": "host",
    "decided_ns": "when the tuner had decided",
    "applied_ns": "when the device confirmed",
    "actions.t_ns": "the reading that the change responds to; initial settings are at 0 or before",
    "events.t_ns": "when",
    "kind": "what sort of event",
    "detail": "what happened",
}

# The keys of trial.json.
TRIAL_MEANS: Mapping[str, str] = {
    "format": "version of this file: 1",
    "id": "the trial's name: a hash of `spec` ends it",
    "seed": "seed of all draws",
    "spec": "the trial, complete; of a replay `spec.parent` names the trial that it replays, with "
    "its SHA-256",
    "stamp": "`valid`; `reasons`, each with code, severity and text; `checked`, the names of the "
    "checks that could be made",
    "versions": "closloop, Python, NumPy, pyarrow, the host's kernel; in a git checkout the commit "
    "with `+changes` if tracked files differ from it",
    "facts": "what the backend says: clock, kernel, what that lacks in real time (`kernel_lacks`), "
    "who counts and marks (`sources`), sysctls, qdiscs, offloads, wall time (`wall_s`), packets "
    "sent by NICs and switch ports (`packet_hops`; `packet_hop` says what was counted), wall clock "
    "at time 0 (`started_ns`, since 1970), and `load`",
}


class StampCode(NamedTuple):
    """A code that a stamp may have: by which check, how severe, and when."""

    check: str
    code: str
    severity: Literal["invalid", "warning", "either"]
    when: str


_I: Literal["invalid"] = "invalid"
_W: Literal["warning"] = "warning"
_E: Literal["either"] = "either"
_STAMP_ROWS = (
    ("generator", "generator-late", _I,
     "a flow was sent more than 2 us from its start, on a real clock more than 1 ms (by the clock: "
     "a scale does not divide it, but 2 us stay allowed)"),
    ("generator", "programs-late", _W,
     "how late the flows are that programs send, which connect first"),
    ("flows", "flows-unfinished", _I, "a flow had not ended when the trial did"),
    ("flows", "flows-failed", _I, "a flow failed"),
    ("flows", "nothing-sent", _I, "no flow sends in the time that is measured"),
    ("sampler", "sampler-behind", _E,
     "a sampling period has no reading within half a period of it; on a real clock it is a warning "
     "for up to 5 % of them"),
    ("link rates", "link-over-rate", _I,
     "between two readings a link carried over 1 % and two packets more than its rate, all classes "
     "and framing counted; on a rack between the earliest and the latest moments of reading, and "
     "in real time with what its shaper makes up for"),
    ("link rates", "link-below-rate", _I,
     "a link carried over 1 % less than its rate while its queues held more than it could send; "
     "not where links go down on purpose"),
    ("link rates", "counters-disagree", _I, "a counter went backwards"),
    ("bytes delivered", "counters-disagree", _I,
     "what the ports towards a host sent, less 66 bytes of headers a packet, is over 1 % away from "
     "its flows' payload and retransmits; 256 bytes a flow are allowed for handshakes, 4 KB a port "
     "for address resolution, and SACK options where a segment was lost"),
    ("drops", "drops", _W, "a switch dropped packets"),
    ("starvation", "flows-starved", _E,
     "flows that last as long as the trial got less than a tenth of their fair share; a warning "
     "with `allow_starvation`"),
    ("ideal times", "faster-than-ideal", _W, "a flow took less than 95 % of its ideal time"),
    ("offloads", "offloads-on", _I, "segmentation offload was on somewhere"),
    ("thresholds", "thresholds-clamped", _W, "a tuner set thresholds out of bounds"),
    ("network", "trained-otherwise", _W,
     "the tuner's network was trained under other parameters than its scenario names now"),
    ("marks", "marks-unanswered", _W,
     "a tuner set ECN thresholds, and no flow responds to CE packets: they had no effect"),
    ("marks", "marks-missing", _W,
     "no packet was marked, although queues grew a frame or more beyond kmax between two readings: "
     "packets are not ECN-capable, or switches do not mark; on a rack readings of the last 1.5 s "
     "are not judged, as switches poll their counters"),
    ("signals", "signal-unmeasured", _I,
     "a tuner observes a signal of which no reading came; a plan refuses most of these"),
    ("devices", "pfc-deadlock", _W, "queues stopped by pauses wait for each other in a circle"),
    ("devices", "pfc-storm", _W,
     "a queue was stopped for longer than the watchdog takes, by a peer that has no reason to"),
    ("devices", "pfc-congestion", _W,
     "a queue was stopped for longer than the watchdog takes, by a queue that sends"),
    ("devices", "headroom-exceeded", _W,
     "packets of a lossless class found no headroom and were dropped"),
    ("devices", "flowlet-overflows", _W,
     "packets found no entry in a flowlet table, and took their flow's ECMP path"),
    ("devices", "sources", _W,
     "a number that a rack's switch lacks, or updates less often than it is sampled"),
    ("devices", "settings-absent", _W, "a setting that a device's kernel does not have"),
    ("devices", "programs", _W, "what the programs that sent flows said"),
    ("devices", "nics", _W, "what hosts' NICs lack or refused"),
    ("devices", "dctcp-program", _W,
     "cuts of windows that the kernel made without DCTCP's program"),
    ("devices", "kernel-lacks", _W,
     "what the machine's own kernel lacks, and what is done without"),
    ("devices", "read-back-differs", _I, "a threshold read back is not what was set"),
    ("devices", "restored-with-differences", _E,
     "a device is not as it was before; a warning for what others changed"),
    ("devices", "timer-gone", _I, "a device's dead-man's timer was gone at the end of the trial"),
    ("devices", "cpu-busy", _I, "in real time, the machine's cores were too busy"),
    ("devices", "softirq-busy", _I,
     "in real time, one core forwarded packets too much of the time"),
    ("devices", "cpu-stolen", _I, "in real time, the hypervisor took the cores"),
    ("devices", "packets-squeezed", _I,
     "in real time, too many packets were left for later by a busy core"),
    ("devices", "packets-lost", _I, "in real time, packets were dropped before a core took them"),
    ("devices", "timers-late", _I, "in real time, processes woke too late"),
    ("devices", "shapers-late", _I, "in real time, shapers sent too late"),
    ("devices", "scale", _W, "what does not follow the scale of real time: CUBIC and BBR"),
    ("imported", "imported", _W, "always: others' results, from which files, and what they lack"),
    ("imported", "no-results", _I, "no file says how the flows ended"),
    ("imported", "flows-unknown", _W, "only flows that ended are known: there is no file of flows"),
    ("imported", "start-rounded", _W, "flows started a nanosecond off, as the simulator rounds"),
    ("imported", "order-of-ends", _W, "the files' rows are not in the order in which flows ended"),
    ("imported", "queues-unknown", _W,
     "the files have queue lengths only of a time outside the run"),
    ("imported", "parameters", _W,
     "the congestion control ran with other parameters than its name says"),
    ("imported", "window", _W, "each flow had a window, so that thresholds hardly change anything"),
)  # fmt: skip
STAMP_CODES = tuple(StampCode(*row) for row in _STAMP_ROWS)
