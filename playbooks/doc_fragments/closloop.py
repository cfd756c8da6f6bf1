"""The options that all modules have, for `ansible-doc`; `reconcile.ARGUMENTS` declares them."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation of the common options; Ansible finds the class by this name."""

    DOCUMENTATION = r"""
options:
  state:
    description: What to do. C(verified) changes nothing and fails if anything differs.
    choices: [present, verified, absent]
    default: present
  holder:
    description: Who changes the device; it is named to others who want to change it meanwhile.
    type: str
    default: an Ansible playbook
  lease:
    description: The lease to take or to continue; if empty, the module takes one of its own.
    type: str
    default: ""
  last:
    description: Drop the lease afterwards, as after a failure. If false, the next module drops it.
    type: bool
    default: true
"""
