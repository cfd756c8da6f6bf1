"""Renders integer trees as a user algorithm of DOCA PCC, for BlueField-3 and later NICs.

The files are laid out as in NVIDIA's template (doca-samples, applications/pcc/device/rp/
rtt_template), so that the SDK can build this folder in place of the template: `rp_*_dev_main.c` has
the entry points, `algo/` the algorithm, its context of 48 bytes per flow, and its parameters. The
computation is the same C as in the other renderings (rlcc.h). Rates are cut to the NIC's 20 bits.
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
# The share of the line, when the probe was sent, the probe's size, and the minimum RTT.
_FIXED_BYTES = 16
_WIDE = 1 << 16
# The value of the template in NVIDIA's guide to DOCA PCC, for a fabric of one switch.
BASE_RTT_NS = 13_000


def context_bytes(model: IntegerTrees) -> int:
    """Return how many bytes a flow's context takes: past deltas have 24 bits, actions 16 or 32."""
    history = model.settings.history
    return _FIXED_BYTES + 3 * (history - 1) + _action_bytes(model) * history


def _action_bytes(model: IntegerTrees) -> int:
    return 2 if model.settings.max_action - model.settings.min_action < _WIDE else 4


def render_doca(
    model: IntegerTrees, name: str, base_rtt_ns: int = BASE_RTT_NS
) -> Mapping[str, str]:
    """Return the files of the algorithm, by path. `base_rtt_ns` is the default of its parameter.

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
    words = _words(model, name, base_rtt_ns)
    files = {
        f"rp_{name}_dev_main.c": "dev_main.c.in",
        f"algo/{name}.c": "algorithm.c.in",
        f"algo/{name}.h": "algorithm.h.in",
        f"algo/{name}_ctxt.h": "context.h.in",
        f"algo/{name}_algo_params.h": "parameters.h.in",
    }
    rendered = {
        path: Template((_TEMPLATES / file).read_text()).substitute(words)
        for path, file in files.items()
    }
    return {**rendered, "algo/rlcc.h": (HEADERS / "rlcc.h").read_text()}


def _words(model: IntegerTrees, name: str, base_rtt_ns: int) -> Mapping[str, object]:
    """Return what the templates' placeholders stand for."""
    settings, ranges = model.settings, congestion_control("rlcc").parameters
    return {
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
