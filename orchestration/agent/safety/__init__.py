"""What leaves a device as it was found: lease, dead-man's timer, snapshot, and who may do what."""
