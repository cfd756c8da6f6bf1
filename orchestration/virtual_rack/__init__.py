"""A rack to try a rack's half on: devices in a virtual-time guest or in containers, behind SSH.

`control` starts and drives racks, `cleanup` removes what a killed one has left; bench uses
`interfaces`, `interface_leases`, `control_groups` and `image` to compare a machine before and
after. Must not import: orchestration.bench, orchestration.papers, orchestration.search.
"""

from orchestration.core.verb import RACKS, Verb

__all__ = [
    "VERBS",
    "cleanup",
    "containers",
    "control",
    "control_groups",
    "folder",
    "image",
    "interface_leases",
    "interfaces",
]

VERBS = (
    Verb(
        "clean",
        "Remove what a killed rack left on this machine, and give leased interfaces back.",
        "orchestration.virtual_rack.verbs:clean",
        RACKS,
    ),
    Verb(
        "rack",
        "Start and use a virtual rack: devices in virtual time, reachable only by SSH.",
        "orchestration.virtual_rack.verbs:app",
        RACKS,
    ),
)
