"""Where a trial runs: `emulated`, `fluid`, `simulated` (ns-3), `hardware`; `imported` runs nothing.

A backend is one folder: `capabilities.py` says what it can do and is named by an entry point of
`closloop.backends`, `backend.py` checks and runs trials (`core.ports.Backend`), `rig.py` is the
fabric that the loop drives. `common` has what several share. A user's package does the same.
Must not import: orchestration.run, orchestration.analysis, orchestration.cli.
"""

__all__ = ["common", "emulated", "fluid", "hardware", "simulated"]
