"""The data path of the emulated fabric: C for the guest's kernel, and how Python talks to it.

`ports`, `hosts`, `paths`, `flows` and `samples` are the Python side; each congestion control is a
declaration `policy_*.py` beside its C. `engine` is C for this process; `library` loads it.
Must not import: collectors.sinks, tuners, orchestration.backends, orchestration.campaign.
"""

__all__ = [
    "flows",
    "hosts",
    "library",
    "packet_engine",
    "paths",
    "policy_dcqcn",
    "ports",
    "samples",
]
