"""What sends a schedule."""
