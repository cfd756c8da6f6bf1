"""What a run folder's tables, their columns and `trial.json` mean.

`make reference` writes the reference pages in docs/generated from it. Columns of samples and of
actions are signals and knobs; their meaning is declared with these.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    "facts": "what the backend says: clock, `engine` with its version (`engine_hash` of the "
    "process, with compiler and ABI; `kernel_hash` of the kernel), what a machine's kernel lacks "
    "in real time (`kernel_lacks`), who counts and marks (`sources`), sysctls, qdiscs, offloads, "
    "wall time (`wall_s`), packets sent by NICs and switch ports (`packet_hops`; `packet_hop` "
    "says what was counted), wall clock at time 0 (`started_ns`, since 1970), what RoCE NICs "
    "counted in the whole trial (`resent`, `cnps`, `naks`, `timeouts`; on racks `naks` and "
    "`nic_timeouts`, null if a NIC does not count them), and `load`, also by pattern and by class "
    "of flow sizes",
}
