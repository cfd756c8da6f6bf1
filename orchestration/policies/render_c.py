"""Renders integer trees as a policy in C: for the guest's kernel, ns-3, BPF, and as a library.

One file has two forms of the same trees. As C, the comparison of each level is a bit of the leaf's
number, so that there are no branches: one mispredicted branch costs as much as a whole tree. As
BPF, which may have no tables, and whose interpreter predicts no branches, the trees are nested
comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestration.core.errors import InputError
from orchestration.policies.trees import IntegerTrees, Tree

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}\Z")


def policy_name(text: str) -> str:
    """Return a name as a C identifier. Raises InputError if it cannot be one."""
    name = text.replace("-", "_")
    if not _NAME.match(name):
        raise InputError.single(
            text,
            "is no name of a policy",
            "start it with a lower-case letter, and use letters, digits and _",
        )
    return name


def render_policy(model: IntegerTrees, name: str) -> str:
    """Return the C source of policy `name`. The same model always gives the same text."""
    settings = model.settings
    return "\n".join(
        [
            "// SPDX-License-Identifier: GPL-2.0-only",
            f"/* RL-CC with the trees of model {model.hash}, written by `closloop compile`.",
            " *",
            f" * {len(model.trees)} trees, {sum(len(t.leaves) for t in model.trees)} leaves; an"
            f" action is at most {model.error_bound:.3g} from the model's.",
            f" * Parameters: target {settings.target_thousandths} and beta"
            f" {settings.beta_thousandths} in thousandths, as it was trained; the base RTT in ns.",
            " */",
            f"#define RLCC_HISTORY {settings.history}",
            f"#define RLCC_LEAST_ACTION {settings.min_action}",
            f"#define RLCC_MOST_ACTION {settings.max_action}",
            *(["#define RLCC_PRESENT 1"] if settings.present else []),
            '#include "policy_rlcc.h"',
            "",
            *_tables(model),
            *_nested(model),
            f"CL_POLICY({name}, RLCC_PARAMETERS, 0);",
            "",
        ]
    )


def leaf_number(tree: Tree) -> str:
    """Return the C expression of the number of the leaf that window `w` leads to."""
    bits = [
        f"(w[{feature}] > {threshold})" + (f" << {bit}" if bit else "")
        for bit, (feature, threshold) in enumerate(zip(tree.features, tree.thresholds, strict=True))
    ]
    return " | ".join(bits) or "0"


def leaf_table(tree: Tree, number: int) -> Iterator[str]:
    """Yield the lines of C that define the table of a tree's leaves."""
    yield f"static const s32 rlcc_leaves_{number}[] = {{"
    for at in range(0, len(tree.leaves), 8):
        yield "\t" + " ".join(f"{leaf}," for leaf in tree.leaves[at : at + 8])
    yield "};"


def _tables(model: IntegerTrees) -> Iterator[str]:
    """Yield the form for C: tables of leaves, and sums of one leaf of each."""
    yield "#ifndef __BPF__"
    for number, tree in enumerate(model.trees):
        yield from leaf_table(tree, number)
    yield from ("", "CL_INLINE s32 rlcc_infer(const s32 *w)", "{", "\ts32 sum = 0;", "")
    for number, tree in enumerate(model.trees):
        yield f"\tsum += rlcc_leaves_{number}[{leaf_number(tree)}];"
    yield from ("\treturn sum;", "}", "#else")


def _nested(model: IntegerTrees) -> Iterator[str]:
    """Yield the form for BPF: nested comparisons."""
    yield "CL_INLINE s32 rlcc_infer(const s32 *window)"
    yield "{"
    yield "\t/* read anew each time: the verifier then forgets what it knows of a word, and the"
    yield "\t * ways through the trees meet again behind each of them"
    yield "\t */"
    yield "\tconst volatile s32 *w = window;"
    yield "\ts32 sum = 0;"
    yield ""
    for tree in model.trees:
        yield from _branches(tree, len(tree.features) - 1, 0, 1)
    yield from ("\treturn sum;", "}", "#endif", "")


def _branches(tree: Tree, bit: int, leaf: int, depth: int) -> Iterator[str]:
    """Yield the comparisons of the levels from `bit` down to 0, and the leaves below them."""
    indent = "\t" * depth
    if bit < 0:
        yield f"{indent}sum += {tree.leaves[leaf]};"
        return
    yield f"{indent}if (w[{tree.features[bit]}] > {tree.thresholds[bit]}) {{"
    yield from _branches(tree, bit - 1, leaf | 1 << bit, depth + 1)
    yield f"{indent}}} else {{"
    yield from _branches(tree, bit - 1, leaf, depth + 1)
    yield f"{indent}}}"
