"""The words as code, which all packages share: testbed, trial, signals, knobs, records, protocols.

They import only NumPy and the standard library, and nothing of ours.
"""
