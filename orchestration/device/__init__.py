"""What runs on devices, and how they are reached."""
