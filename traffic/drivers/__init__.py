"""Drivers, which send the flows of a schedule."""
