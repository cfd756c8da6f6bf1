"""Replays: make a campaign from a run, with its flows, actions and testbed as files."""
