"""Safety of a rack: ledger, leases, dead-man's timers, limits and the circuit breaker."""
