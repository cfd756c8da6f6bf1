"""BPF programs: their sources, compiled on the host, loaded in the guest."""
