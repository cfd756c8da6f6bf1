"""What is measured: readers of counters, the recorder of a trial, and where records go.

`readers` decode one source of counters each, `bpf` compiles and describes BPF programs that count
on devices, `recorder` turns observations into a trial's tables, `snapshot` shares a running
trial's progress through a file, `incidents` reads what a PFC watchdog reports, and `sinks` take
records besides the run folder.
Must not import: traffic, tuners, orchestration.backends, orchestration.run.
"""

__all__ = ["bpf", "incidents", "readers", "recorder", "sinks", "snapshot"]
