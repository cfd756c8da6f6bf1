#!/usr/bin/python
"""Ansible module: drops the lease of a device whose provisioning was stopped."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.closloop.reconcile import Refused, release

DOCUMENTATION = r"""
module: closloop_release
short_description: Gives a device back whose provisioning was stopped between two modules
description:
  - Waits for a module that still runs, then drops the lease if it is held. The device's settings
    stay as they are.
options:
  lease:
    description: The lease that the modules were given.
    type: str
    required: true
author: closloop
"""

EXAMPLES = r"""
- name: Drop the lease
  closloop_release:
    lease: "{{ closloop_lease }}"
"""

RETURN = r""" # """


def main() -> None:
    """Run the module."""
    module = AnsibleModule({"lease": {"type": "str", "required": True}})
    try:
        release(module.params["lease"])
        module.exit_json(changed=False)
    except Refused as error:
        module.fail_json(msg=error.what, remedy=error.remedy)


if __name__ == "__main__":
    main()
