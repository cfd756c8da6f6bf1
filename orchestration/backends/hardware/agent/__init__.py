"""What runs on a device: sent over SSH's standard input, kept in memory, gone with the connection.

Standard library only, Python 3.9 and newer, and no module of this project but those in `BUNDLE` of
`orchestration.backends.hardware.bundle`.
"""
