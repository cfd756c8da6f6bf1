"""Code shared by the modules in `playbooks/library`. It runs on devices: Python 3.9 or later."""
