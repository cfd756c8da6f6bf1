"""Runs experiments: campaigns, backends, the loop, artifacts, analysis, command line."""
