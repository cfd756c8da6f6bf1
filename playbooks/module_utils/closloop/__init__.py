"""What the modules in `playbooks/library` share. It runs on devices: Python 3.9 or later."""
