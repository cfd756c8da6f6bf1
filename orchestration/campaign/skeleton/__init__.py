"""A first campaign, written from the answers to three questions: `closloop init`.

Must not import: orchestration.backends, orchestration.run, orchestration.cli.
"""

__all__ = ["arms", "factors", "write"]
