"""The options that all modules have, for `ansible-doc`; `reconcile.ARGUMENTS` declares them."""

from __future__ import annotations


class ModuleDocFragment:
    """Ansible finds it by this name."""

    DOCUMENTATION = r"""
options:
  state:
    description: What to do. C(verified) changes nothing and fails if anything differs.
    choices: [present, verified, absent]
    default: present
  holder:
    description: Who changes the device; told to others who want to meanwhile.
    type: str
    default: an Ansible playbook
  lease:
    description: The lease to take, or to go on with; one of this module's own without.
    type: str
    default: ""
  last:
    description: Give the device back afterwards, as after a failure. If not, the next module does.
    type: bool
    default: true
"""
