"""What there is: testbeds, their devices, ports and links."""
