"""The virtual rack: devices in a virtual-time guest, reachable only by SSH."""

from orchestration.core.verb import RACKS, Verb

VERBS = (
    Verb(
        "clean",
        "Remove what a killed rack left on this machine, and give lent interfaces back.",
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
