"""Definitions that all packages share. They import only NumPy and the standard library."""
