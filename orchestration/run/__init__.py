"""Runs a campaign: trials side by side, each in a process of its own, journalled and resumable."""
