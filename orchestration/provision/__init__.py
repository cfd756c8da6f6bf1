"""Brings a rack's devices into a known state and back: the state asked for, and Ansible's run."""
