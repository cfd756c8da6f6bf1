"""Models for tests of compiled policies, and their libraries."""

import ctypes
import json
from pathlib import Path

import numpy as np

from orchestration.bench.policy_agreement import trees_model
from orchestration.policies.catboost_model import read_model
from orchestration.policies.compile import compile_model

RECORDED = Path(__file__).with_name("recorded") / "catboost-1.2.10-rlcc.json"
WINDOW_AT = 7  # words of 32 bits before it in struct rlcc


def model_file(path, **changes):
    """Write the recorded model with other top-level entries; return the path."""
    path.write_text(json.dumps({**json.loads(RECORDED.read_text()), **changes}))
    return path


def present_file(path):
    """Write the recorded model with two of its features replaced by those of the present."""
    raw = json.loads(RECORDED.read_text())
    for tree in raw["oblivious_trees"]:
        for split in tree["splits"]:
            if split["float_feature_index"] > 3:
                top = 20 if split["float_feature_index"] == 4 else 1
                split["border"] = float(np.float32(abs(split["border"]) % top))
    about = json.loads(raw["model_info"]["closloop"])
    about.update(history=2, features=[f"{w}[{n}]" for n in (0, 1) for w in ("delta", "action")])
    about["features"] += ["inflation", "rate"]
    raw["model_info"]["closloop"] = json.dumps(about)
    path.write_text(json.dumps(raw))
    return path


def infer(library, given):
    """Return a library's sums of leaves for windows."""
    sums = np.empty(len(given), dtype=np.int32)
    pointers = (item.ctypes.data_as(ctypes.c_void_p) for item in (given, sums))
    library.rlcc_infer_all(*pointers, ctypes.c_uint64(len(given)))
    return sums


def recorded():
    """Return the recorded model."""
    return read_model(RECORDED)


def compiled(source, folder):
    """Return a model that is compiled there."""
    return trees_model(read_model(source), compile_model(source, "c", folder / "mine.c").files[0])
