"""The hardware backend: a rack of switches and hosts, reached over SSH."""
