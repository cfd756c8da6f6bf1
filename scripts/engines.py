"""Makes docs/generated/engines.md: the packet engine in the process against the kernel.

The margins and the repeats stand here before anything of it has run in both engines.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from orchestration.analysis.comparison.equivalence import Margins  # noqa: E402
from orchestration.core.engines import KERNEL, PROCESS  # noqa: E402

RUNS = ROOT / "runs" / "engines"
PAGE = ROOT / "docs" / "generated" / "engines.md"
# A is the kernel, the reference.
SIDES = (KERNEL, PROCESS)
# The golden campaigns whose flows are those of RoCE NICs, and how often each is repeated.
GOLDEN = {
    "tests/golden/runs-0.3/fixed.yml": 60,
    "tests/golden/runs-0.3/dcqcn.yml": 60,
    "tests/golden/campaigns/roce.yml": 40,
    "examples/compare/ecn-roce.yml": 24,
}
# Those of `closloop compare` without options, fixed before anything ran in both engines.
MARGINS = Margins()
