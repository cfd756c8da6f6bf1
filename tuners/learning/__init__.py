"""What tuners that learn share: networks, experience, checkpoints."""
