"""Counterfactuals: a trial with one decision changed, and what the change did."""
