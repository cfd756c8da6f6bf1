"""Tuners of flowlet timeouts at switches: static ones, by load, and learned ones."""
