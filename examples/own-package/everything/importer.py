"""An importer: `closloop import log run.log -o runs/theirs`."""

from pathlib import Path
from typing import Annotated

import numpy as np

from inventory.files import load_testbed
from orchestration.exchange import Imported, ImportedFlows


def import_log(
    file: Annotated[Path, "The simulator's log."],
    *,
    testbed: Annotated[str, "The testbed that was simulated."] = "graphcc",
) -> Imported:
    """Import a run of a simulator that writes one line per flow.

    A line has start, source, destination, bytes and end. Times are in ns, hosts are numbers.
    """
    start_ns, src, dst, size_bytes, end_ns = np.loadtxt(file, dtype=np.int64, unpack=True)
    all_done = one_class = np.zeros_like(src)
    flows = ImportedFlows(
        start_ns, src, dst, size_bytes, one_class, ("all",), end_ns, status=all_done
    )
    return Imported("log", load_testbed(testbed), flows, inputs={}, results={"log": file})
