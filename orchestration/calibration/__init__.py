"""Measures what a backend's fabric really does, and corrects a testbed file by it."""
