"""The files of a run folder: written, read back, and found."""
