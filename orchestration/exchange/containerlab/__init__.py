"""Testbeds as labs of containerlab, and the links of such labs as testbeds."""
