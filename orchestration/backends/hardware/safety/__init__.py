"""A rack stays safe: the ledger, dead-man's timers, limits on changes, and the circuit breaker.

`guard` watches a trial, `ledger` records what was touched, `recovery` restores it after a crash,
`limits` bound and delay changes, `restore_result` says how each device was left.
Must not import: orchestration.run, orchestration.cli, orchestration.virtual_rack.
"""

__all__ = ["guard", "ledger", "limits", "recovery", "restore_result"]
