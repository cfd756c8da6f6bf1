"""What tests of the cluster share: `cluster_trials`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
