"""Inventory: testbeds, their devices, ports and links, and the racks that they stand for."""
