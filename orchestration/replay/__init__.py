"""Replays: makes a campaign out of a run, with its flows, its actions and its testbed as files."""
