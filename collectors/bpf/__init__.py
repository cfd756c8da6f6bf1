"""BPF programs: their sources, compiling on the host, loading in the guest."""
