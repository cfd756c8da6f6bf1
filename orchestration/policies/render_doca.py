"""Renders integer trees as a user algorithm of DOCA PCC, for BlueField-3 and later NICs.

The files are laid out as NVIDIA's template has them (doca-samples, applications/pcc/device/rp/
rtt_template), so that the SDK's build takes the folder in that one's place: `rp_*_dev_main.c` with
the entry points, `algo/` with the algorithm, its context of 48 bytes a flow, its parameters. What
is computed is the C of the other renderings (rlcc.h); rates are cut to the NIC's 20 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

from collectors.bpf.policy import HEADERS
from orchestration.core.congestion import congestion_control
from orchestration.core.errors import InputError
from orchestration.policies.render_c import leaf_number, leaf_table
from orchestration.policies.trees import IntegerTrees

_TEMPLATES = Path(__file__).with_name("doca_pcc")
CONTEXT_BYTES = 48
# Share, when the probe left, the probe's bytes, the least round trip.
_FIXED_BYTES = 16
_WIDE = 1 << 16
# What the template has for a fabric of one switch, of NVIDIA's guide to DOCA PCC.
BASE_RTT_NS = 13_000


def context_bytes(model: IntegerTrees) -> int:
    """Return how many bytes a flow's context takes: all past deltas in 24 bits, and actions."""
    history = model.settings.history
    return _FIXED_BYTES + 3 * (history - 1) + _action_bytes(model) * history


def _action_bytes(model: IntegerTrees) -> int:
    return 2 if model.settings.max_action - model.settings.min_action < _WIDE else 4


def render_doca(
    model: IntegerTrees, name: str, base_rtt_ns: int = BASE_RTT_NS
) -> Mapping[str, str]:
    """Return the files of the algorithm by their paths; `base_rtt_ns` is its parameter's default.

    Raises InputError if a flow needs more than the 48 bytes that it is given.
    """
    needed = context_bytes(model)
    if needed > CONTEXT_BYTES:
        raise InputError.single(
            name,
            f"with a history of {model.settings.history} a flow needs {needed} bytes, and DOCA PCC "
            f"gives it {CONTEXT_BYTES}",
            "train it on a shorter history",
        )
    settings, ranges = model.settings, congestion_control("rlcc").parameters
    words = {
        "name": name,
        "NAME": name.upper(),
        "hash": model.hash,
        "minor": int(model.hash[:2], 16),
        "history": settings.history,
        "least_action": settings.min_action,
        "most_action": settings.max_action,
        "present": int(settings.present),
        "action_bits": 8 * _action_bytes(model),
        "past": max(1, settings.history - 1),
        "target": settings.target_thousandths,
        "beta": settings.beta_thousandths,
        "base_rtt": base_rtt_ns,
        "most_target": ranges["target"].maximum,
        "most_beta": ranges["beta"].maximum,
        "most_rtt": ranges["base_rtt"].maximum,
        "tables": "\n".join(
            line for number, tree in enumerate(model.trees) for line in leaf_table(tree, number)
        ),
        "sums": "\n".join(
            f"\tsum += rlcc_leaves_{number}[{leaf_number(tree)}];"
            for number, tree in enumerate(model.trees)
        ),
    }
    files = {
        f"rp_{name}_dev_main.c": "dev_main.c.in",
        f"algo/{name}.c": "algorithm.c.in",
        f"algo/{name}.h": "algorithm.h.in",
        f"algo/{name}_ctxt.h": "context.h.in",
        f"algo/{name}_algo_params.h": "parameters.h.in",
    }
    made = {
        path: Template((_TEMPLATES / file).read_text()).substitute(words)
        for path, file in files.items()
    }
    return {**made, "algo/rlcc.h": (HEADERS / "rlcc.h").read_text()}
