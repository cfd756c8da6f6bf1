"""Campaign files in run folders of closloop 0.2, where a name meant something else than now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestration.campaign.schema import CampaignFile
from orchestration.core.errors import InputError
from orchestration.core.roce import FORMER_HPCC, HPCC, is_former_hpcc
from orchestration.results.reader import finished_trials, read_trial


def with_former_sets(files: Sequence[CampaignFile], path: str | Path) -> list[CampaignFile]:
    """Return a campaign file's cells with the DCQCN set that it named when its trials ran.

    The trials beside the file tell: where some have the parameters that 0.2 called `hpcc`, and the
    file does not know them by their present name, `hpcc` is that set.
    """
    named = [file.host.roce.dcqcn.set for file in files]
    if HPCC not in named or FORMER_HPCC in named or not _has_former(Path(path).parent):
        return list(files)
    return [
        _renamed(file) if name == HPCC else file for file, name in zip(files, named, strict=True)
    ]


def has_former_hpcc(trial: Path) -> bool:
    """Return whether a finished trial ran under the parameters that 0.2 called `hpcc`."""
    try:
        roce = read_trial(trial).spec.host.roce
    except InputError:
        return False
    return roce is not None and is_former_hpcc(roce.parameters)


def _has_former(folder: Path) -> bool:
    return any(has_former_hpcc(trial) for trial in finished_trials(folder))


def _renamed(file: CampaignFile) -> CampaignFile:
    dcqcn = file.host.roce.dcqcn.model_copy(update={"set": FORMER_HPCC})
    roce = file.host.roce.model_copy(update={"dcqcn": dcqcn})
    host = file.host.model_copy(update={"roce": roce})
    return file.model_copy(update={"host": host})
