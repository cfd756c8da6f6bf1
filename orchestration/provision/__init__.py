"""Prepares a rack before experiments, and undoes it, by Ansible's playbooks.

Must not import: orchestration.bench, orchestration.papers, orchestration.search.
"""

from orchestration.core.verb import RACKS, TUNERS, Verb

__all__ = ["VERBS"]

VERBS = (
    Verb(
        "deploy",
        "Put a congestion control in force, for campaigns or on a rack's hosts; reversible.",
        "orchestration.provision.verb_deploy:deploy",
        TUNERS,
    ),
    Verb(
        "provision",
        "Bring a rack's devices into the state that experiments need; it can be undone.",
        "orchestration.provision.verbs:provision",
        RACKS,
    ),
    Verb(
        "restore",
        "Restore a rack after dead runs, and undo deployed policies and provisioning.",
        "orchestration.provision.verbs:restore",
        RACKS,
    ),
)
