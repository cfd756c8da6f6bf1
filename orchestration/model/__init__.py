"""The pure leaf: units, records, protocols and errors. Imports NumPy and the standard library only."""
