"""Compares runs: pairs their trials and flows, and tests each difference for equivalence."""
