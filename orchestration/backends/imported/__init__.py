"""What `orchestration.exchange` takes over from other programs: nothing runs here.

Must not import: orchestration.exchange, orchestration.backends.emulated.
"""

__all__: list[str] = []
