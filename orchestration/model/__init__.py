"""The pure leaf: units, records, protocols and errors. Only NumPy and the standard library."""
