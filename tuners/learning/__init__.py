"""What learned tuners share: networks, checkpoints, replay buffers, the protocol of a learner.

Must not import: tuners.ecn, tuners.flowlet, tuners.training, orchestration.backends.
"""

__all__ = ["checkpoint", "learner", "networks", "q_learning", "replay_buffer"]
