"""What emulated trials need of the user's cache on another machine: the kernel, BPF programs."""

from __future__ import annotations

import os

from collectors.bpf.compile import cache_folder
from orchestration.core.packaged import BPF, packaged
from orchestration.core.ports import Luggage
from orchestration.kernel.cache import (
    BINARY,
    MANIFEST,
    OVERRIDE,
    require_kernel,
)


def cached_luggage() -> Luggage:
    """Return the kernel that trials would boot here, and the BPF programs that are compiled.

    Raises NotReadyError without a kernel, InputError as `require_kernel` does.
    """
    kernel = require_kernel()
    folder = f"closloop/kernel/{kernel.hash}"
    files = {f"{folder}/{BINARY}": kernel.path}
    variables = {}
    if kernel.manifest is None:
        variables[OVERRIDE] = f"{folder}/{BINARY}"
    else:
        files[f"{folder}/{MANIFEST}"] = kernel.path.with_name(MANIFEST)
    folders = [folder for folder in (packaged(BPF), cache_folder()) if folder]
    programs = sorted(path for folder in folders for path in folder.glob("*.o"))
    # the same names as here, which are made of the source's hash: a newer source is compiled there
    files |= {os.path.join("closloop", "bpf", path.name): path for path in programs}
    return Luggage(files, variables)
