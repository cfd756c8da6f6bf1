"""BPF on a device: object files read, programs loaded, and their maps."""
