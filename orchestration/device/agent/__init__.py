"""What runs on a device: sent over SSH's standard input, kept in memory, gone with the connection.

Standard library only, Python 3.9 and newer; modules of this project that it imports at the top go
with it (`orchestration.device.bundle`), and must be like that too.
"""
