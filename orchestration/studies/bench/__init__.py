"""Benchmarks that check the project's claims: `closloop bench`."""
