"""The way back: ledger, leases, dead-man's timers, limits and the circuit breaker."""
