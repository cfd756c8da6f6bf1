"""Services on a Linux switch: RED, marking without RED, the choice of paths, flow tables."""
