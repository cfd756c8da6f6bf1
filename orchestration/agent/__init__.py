"""The agent on a device: sent over SSH's standard input, kept in memory, gone with the connection.

It uses only the standard library and runs on Python 3.9 and newer. Modules of this project that it
imports at the top are sent with it (`orchestration.device.bundle`) and follow the same rule.
"""
