"""Learned congestion controls as programs: read, made integers, rendered as C, deployed.

`catboost_model` reads a model, `trees` holds it in integers, `reference` computes it in Python,
`render_c` and `render_doca` write C, `compile` compiles it, `store` keeps it.
Must not import: orchestration.backends, orchestration.campaign, tuners.
"""

__all__ = [
    "catboost_model",
    "compile",
    "pacing",
    "reference",
    "render_c",
    "render_doca",
    "store",
    "trees",
]
