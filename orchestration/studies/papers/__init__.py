"""Compares runs of the papers' campaigns with the numbers that the papers print."""
