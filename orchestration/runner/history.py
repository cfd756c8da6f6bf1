"""What the journal of a run says for an index: what was planned, what failed, how it ended."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

from orchestration.analysis.index.entries import History
from orchestration.runner import journal as log
from orchestration.runner.folder import JOURNAL_FILE
from orchestration.runner.journal import read_journal


def read_history(folder: Path) -> History:
    """Return what a run folder's journal says; nothing is known of one without a journal."""
    planned, state = 0, ""
    failed: dict[str, str] = {}
    began_s = ended_s = math.nan
    for entry in read_journal(folder / JOURNAL_FILE):
        event, trial = entry["event"], str(entry.get("trial", ""))
        at_s = datetime.fromisoformat(entry["at"]).timestamp()
        if event == log.TRIAL_STARTED and math.isnan(began_s):
            began_s = at_s
        if event in (log.TRIAL_FINISHED, log.TRIAL_FAILED):
            ended_s = at_s
        if event == log.RUN_STARTED:
            planned, state = int(entry["trials"]), ""
        elif event == log.LOOKED:
            planned = int(entry["trials"])
        elif event == log.TRIAL_FAILED:
            failed[trial] = str(entry["message"])
        elif event in (log.TRIAL_STARTED, log.TRIAL_FINISHED):
            failed.pop(trial, None)
        elif event == log.RUN_FINISHED:
            state = "finished"
        elif event == log.RUN_INTERRUPTED:
            state = "interrupted"
    return History(planned, failed, began_s, ended_s, state)


def run_folders(path: Path) -> list[Path]:
    """Return the run folders at and below `path` that have a journal, sorted; hidden ones not."""
    return sorted(
        found.parent
        for found in path.rglob(JOURNAL_FILE)
        if not any(part.startswith(".") for part in found.relative_to(path).parts)
    )
