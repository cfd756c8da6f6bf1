"""How devices are reached: SSH, jump hosts, sudo, and clients of the agents that run there.

Must not import: orchestration.backends, orchestration.campaign, orchestration.run.
"""

__all__ = ["client", "errors", "jump_hosts", "ssh"]
