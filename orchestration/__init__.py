"""Runs experiments: from a campaign file through trials on a backend to reports.

CONTRIBUTING.md has the map of the packages, and docs/architecture.md the way of a campaign through
them.
Must not import: closloop.
"""

__all__ = ["agent", "analysis", "campaign", "core", "device", "environment", "results", "run"]
