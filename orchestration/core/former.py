"""What closloop before 0.3 meant by a name that means something else now.

Its DCQCN set `hpcc` is `hpcc-0.2` (`orchestration.core.roce`). Trials have their parameters in
their records, so these tell. A network's card has its scenario as the text of a campaign file, and
the version that wrote it tells what names meant there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestration.core.roce import FORMER_HPCC, HPCC

_COMMENT = re.compile(r"#.*")
# The set's name as a value; the congestion control HPCC has the same.
_NAMED = re.compile(rf"(?<!congestion_control: )(?<![\w.-]){HPCC}(?![\w.-])")

FORMER_HPCC_TEXT = (
    f"the DCQCN set {FORMER_HPCC} (rpg_ai_rate 50, rpg_hai_rate 100, rpg_min_rate 100 Mbps), where "
    "HPCC's simulator has 5, 50 and 1000 at 25 Gbit/s"
)


def trained_under_former_hpcc(card: Mapping[str, object]) -> bool:
    """Return whether a network's card says that it was trained under what is `hpcc-0.2` now."""
    versions, scenario = card.get("versions"), card.get("scenario")
    if not isinstance(versions, Mapping) or not isinstance(scenario, str):
        return False
    if not _is_before_0_3(str(versions.get("closloop", ""))):
        return False
    text = _COMMENT.sub("", scenario)
    return "dcqcn" in text and _NAMED.search(text) is not None


def _is_before_0_3(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < (0, 3)
