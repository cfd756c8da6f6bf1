"""Where records go while a trial runs, besides its run folder: InfluxDB, through a spool on disk.

`spool_observer` is the observer that the loop calls, `spool` the file between two processes,
`lines` the line protocol, `influx` the client. A sink is offered in the entry-point group
`closloop.sinks`.
Must not import: collectors.readers, tuners, orchestration.run.
"""

__all__ = ["influx", "lines", "spool", "spool_observer"]
