"""Congestion control of a host's connections, or in its NIC: put in force, taken back, reported."""
