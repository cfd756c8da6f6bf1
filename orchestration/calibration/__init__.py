"""What a backend's fabric really does, measured, and a testbed file corrected by it."""
