"""A policy on a host: a service of the agent (orchestration/agent), which takes it along.

Standard library only, and Python 3.9, as all that agents run.
"""
