"""Facts of imported trials about the run they come from, beyond their spec and testbed.

`facts["imported"]["settings"]` maps a setting that decides that run's results, and that neither the
spec nor the testbed of an import holds, to words about it. Folders of 0.2 lack it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestration.core.units import format_size

HPCC_FORMAT = "HPCC ns-3"
# In the spec of an import, for the hosts' congestion control; the facts have the real one.
IMPORTED_CONTROL = "imported"
# The fact with the congestion control, and its value where no file has it.
CONGESTION_CONTROL, UNKNOWN_CONTROL = "congestion_control", "unknown"


def import_settings(facts: Mapping[str, Any], buffer_bytes: int) -> dict[str, str]:
    """Return the settings of an imported run that its spec and testbed do not hold: name -> words.

    For a folder of 0.2 they are what every run of that simulator has, with a switch's buffer of
    `buffer_bytes`.
    """
    imported = facts.get("imported")
    if not isinstance(imported, Mapping):
        return {}
    settings = imported.get("settings")
    if isinstance(settings, Mapping):
        return {str(name): str(words) for name, words in settings.items()}
    if imported.get("format") != HPCC_FORMAT:
        return {}
    parameters = facts.get("hpcc_parameters")
    window = parameters.get("HAS_WIN", "1") != "0" if isinstance(parameters, Mapping) else False
    return {
        "shared-buffer": shared_buffer_words(buffer_bytes),
        "pfc": "PFC",
        **({"window": "a window of a bandwidth-delay product for each flow"} if window else {}),
    }


def shared_buffer_words(buffer_bytes: int) -> str:
    """Return the words about a switch's buffer that its ports share."""
    mib, rest = divmod(buffer_bytes, 2**20)
    size = format_size(buffer_bytes) if rest else f"{mib}MiB"
    return f"a buffer of {size} that a switch's ports share"
