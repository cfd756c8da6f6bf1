"""The fabric in ns-3: a C++ program that is compiled here and runs one trial.

`program` compiles it and talks to it, `job` describes a trial to it, `rig` is the fabric that the
loop drives. The program's source is in the folder `ns3`.
Must not import: orchestration.backends.emulated, orchestration.backends.fluid,
orchestration.backends.hardware.
"""

__all__ = ["job", "program"]
