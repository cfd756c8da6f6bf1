"""From a campaign file to checked trials.

`schema` and `fields` are the file's fields, `expand.load_campaign` reads it, crosses factors,
tuners and repeats, and returns the trials; `plan` estimates their time and size, `bounds` and
`limits` refuse what no machine would finish, `skeleton` writes a first file.
Must not import: orchestration.backends, orchestration.analysis, orchestration.run.
"""

__all__ = [
    "bounds",
    "cells",
    "controls",
    "deliverable_load",
    "expand",
    "fields",
    "hosts",
    "limits",
    "plan",
    "rotation",
    "scale",
    "schema",
    "search_result",
    "skeleton",
    "unresponsive",
    "unused",
]
