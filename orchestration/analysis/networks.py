"""What a reader must know of the networks that decide in trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from orchestration.core.roce import FORMER_HPCC_TEXT, trained_under_former_hpcc
from orchestration.core.trial import TrialSpec, checkpoint_in
from orchestration.results.stamp import Reason
from tuners.learning.checkpoint import CheckpointError, card_of, find

TRAINED_OTHERWISE = "trained-otherwise"


def check_network(trial: TrialSpec) -> Iterable[Reason] | None:
    """Report a network that was trained under other parameters than its scenario names now.

    None for a trial without a network, or with one whose card cannot be read.
    """
    name = checkpoint_in(trial)
    try:
        card = _card(name) if name else None
    except CheckpointError:
        card = None
    if card is None:
        return None
    if not trained_under_former_hpcc(card):
        return ()
    text = f"its network was trained under {FORMER_HPCC_TEXT}, in part: it is to be trained anew"
    return (Reason(TRAINED_OTHERWISE, "warning", text),)


def cautions(names: Iterable[str]) -> list[str]:
    """Return the cautions on networks by their names or files, those with the same one together."""
    former = []
    for name in dict.fromkeys(names):
        try:
            if trained_under_former_hpcc(_card(name)):
                former.append(name)
        except CheckpointError:
            continue
    if not former:
        return []
    one = "networks were" if len(former) > 1 else "network was"
    return [
        f"{', '.join(former)}: {one} trained under {FORMER_HPCC_TEXT}, in part, and to be trained "
        "anew"
    ]


@cache
def _card(name: str) -> Mapping[str, object]:
    return card_of(find(name))
