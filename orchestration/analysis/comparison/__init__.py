"""Compares runs: pairs their trials and flows, and judges each difference by equivalence tests."""
