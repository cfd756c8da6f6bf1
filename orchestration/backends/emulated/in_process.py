"""What trials in the process need: the packet engine's library, and memory. They need no kernel."""

from __future__ import annotations

from typing import Any

from orchestration.core.engines import PROCESS, engine_facts
from orchestration.core.ports import TrialBundle


def facts() -> dict[str, Any]:
    """Return the facts about the packet engine that each trial's record has.

    Raises NotReadyError if there is no library, and none can be compiled.
    """
    from orchestration.datapath.library import load_engine

    about = load_engine().about
    return engine_facts(
        PROCESS,
        str(about["engine"]),
        engine_compiler=about["compiler"],
        engine_abi=about["abi"],
    )


def bundle() -> TrialBundle:
    """Return the compiled library; empty if the package itself contains it.

    The other machine compiles one of its own if it has another compiler. Raises NotReadyError.
    """
    from orchestration.datapath.engine_build import MANIFEST, engine_source, find_built
    from orchestration.datapath.library import load_engine

    load_engine()
    built = find_built(engine_source())
    files = () if built is None else (built.path, built.path.with_name(MANIFEST))
    return TrialBundle({f"closloop/engine/{p.parent.name}/{p.name}": p for p in files})
