"""Compares two runs: pairs their trials and flows, and tests each metric for equivalence.

`result` is the outcome, `equivalence` the tests, `causes` the settings that could explain a
difference, `sentences` and `blocks` what is printed.
Must not import: orchestration.run, orchestration.backends, orchestration.cli.
"""

__all__ = ["blocks", "causes", "equivalence", "result", "sentences"]
