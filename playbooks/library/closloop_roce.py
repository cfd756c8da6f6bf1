#!/usr/bin/python
"""Ansible module: a RoCE host's NIC and limits, each step only where the host offers it."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.closloop.reconcile import ARGUMENTS, run
from ansible.module_utils.closloop.roce import RoceHost

DOCUMENTATION = r"""
module: closloop_roce
short_description: Brings a RoCE host's trust mode, PFC, DCQCN and limits into one state
description:
  - Sets trust mode, the priority of RoCE's DSCP, PFC, the type of service of RoCE connections,
    DCQCN parameters, the limit of locked memory and the CPU governor.
  - A step that the host does not offer is left out and reported with the reason.
  - Former values are saved in C(/var/lib/closloop/provision); O(state) C(absent) puts them back.
options:
  state:
    description: What to do. C(verified) changes nothing and fails if anything differs.
    choices: [present, verified, absent]
    default: present
  desired:
    description: The state, as C(orchestration/provision/desired.py) computes it.
    type: dict
author: closloop
"""

EXAMPLES = r"""
- name: Prepare the NIC
  closloop_roce:
    desired:
      interfaces: [eth2]
      rdma_device: mlx5_0
      trust: dscp
      dscp: 26
      type_of_service: 106
      priority: 3
      dcqcn: {rp_ai_rate: 5}
      memlock: unlimited
      governor: performance
"""

RETURN = r"""
skipped_steps:
  description: Steps left out because the host does not offer them, each with its reason.
  type: list
  returned: success
"""


def main() -> None:
    """Be the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    run(module, RoceHost(module.run_command))


if __name__ == "__main__":
    main()
