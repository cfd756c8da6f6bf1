"""The virtual rack: devices in a virtual-time guest, reachable only by SSH."""
