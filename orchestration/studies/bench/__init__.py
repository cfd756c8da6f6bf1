"""Measurements that show what the project claims: `closloop bench`."""
