"""A policy as the pacing of Linux hosts' TCP: compiled here, loaded by the agent on the host.

`build` compiles the BPF program and describes one version of it for the agent.
Must not import: orchestration.backends, orchestration.campaign, tuners.
"""

__all__ = ["build"]
