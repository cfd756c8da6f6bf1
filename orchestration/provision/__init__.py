"""Bring a rack's devices into a known state, and back, with Ansible."""
