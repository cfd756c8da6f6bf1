"""Congestion control that was learned: what decides in a NIC, once a round trip and flow."""
