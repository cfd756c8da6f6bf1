"""Learned congestion controls as integers: read, quantised, rendered as C, and deployed."""
