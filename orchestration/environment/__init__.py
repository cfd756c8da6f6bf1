"""The fabric as a learning environment: PettingZoo's `ParallelEnv`, and Gymnasium's `Env`.

They need the extra `learn`: `pip install 'closloop[learn]'`.
Must not import: orchestration.training, orchestration.bench, torch.
"""

from orchestration.environment.fabric_episodes import Settings
from orchestration.environment.parallel import FabricEnv, FabricParallelEnv

__all__ = ["FabricEnv", "FabricParallelEnv", "Settings"]
