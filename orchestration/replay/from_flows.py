"""Replays of a file of flows: what others recorded or made up, on a testbed of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from inventory.topology import Testbed
from orchestration.model.digest import sha256_of
from orchestration.model.errors import InputError, Problem
from orchestration.replay.campaign_file import ReplayCampaign, ReplayedPattern
from orchestration.replay.draft import Draft
from orchestration.replay.request import ReplayRequest, backend_of
from orchestration.replay.tuner_entries import other_tuners, with_checkpoint
from traffic.flow_file import read_flows
from tuners.registry import RECORDED

_FLOWS_FILE = "flows.csv"
_DEFAULT_BACKEND = "emulated"
_SAMPLE_PERIOD_NS = 100_000


def draft(request: ReplayRequest) -> Draft:
    """Return the draft of a replay of a flow file. Raises InputError for a bad one.

    The trial's duration is up to the last flow's start, in whole sampling periods.
    """
    if request.run.suffix != ".csv":
        raise InputError.single(
            str(request.run),
            "is no CSV of flows",
            f"make one of a capture or of flow records: closloop import flows {request.run}",
        )
    problems = []
    if RECORDED in request.tuners:
        remedy = "name a tuner that decides: --tuner secn1"
        problems.append(Problem("--tuner", f"{request.run} has no recorded actions", remedy))
    unfit = {"--trials": request.trials, "--scale-thresholds": request.scale_thresholds}
    for option, given in unfit.items():
        if given:
            problems.append(Problem(option, f"{request.run} is a file of flows", "leave it out"))
    if problems:
        raise InputError(problems)
    flows = read_flows(str(request.run))
    if not len(flows):
        raise InputError.single(str(request.run), "it has no flows", "there is nothing to replay")
    backend = backend_of(request, _DEFAULT_BACKEND)
    others = other_tuners(request.tuners)
    duration_ns = (int(flows.start_ns[-1]) // _SAMPLE_PERIOD_NS + 1) * _SAMPLE_PERIOD_NS

    def write(folder: Path, testbed: Testbed, name: str) -> ReplayCampaign:
        shutil.copyfile(request.run, folder / _FLOWS_FILE)
        return ReplayCampaign(
            name=name,
            backend=backend,
            tuners=tuple(with_checkpoint(entry, folder) for entry in others),
            flows_file=_FLOWS_FILE,
            patterns=tuple(ReplayedPattern(klass) for klass in flows.klass.names),
            repeats=request.repeats or 1,
            duration_ns=duration_ns,
            parent_run=request.run.name,
            parent_sha256=sha256_of(request.run),
        )

    return Draft(
        parent=request.run.stem,
        apart="",
        backend=backend,
        testbed=None,
        others=others,
        notes=(),
        write=write,
    )
