"""Runs a campaign: trials side by side, each in a process of its own, journalled and resumable.

`launcher` starts campaigns for the command line and the Python API, `checked` makes every check
before anything runs, `runner` runs trials, `executors` are where they run, `worker` is one trial,
`backend_factory` makes backends, `folder` and `state` are the run folder and its progress.
Must not import: orchestration.cli, orchestration.cluster, orchestration.watch.
"""

__all__ = [
    "adaptive",
    "backend_factory",
    "checked",
    "executors",
    "folder",
    "launcher",
    "runner",
    "state",
    "worker",
]
