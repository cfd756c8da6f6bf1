"""The `fluid` backend: a deterministic fluid model of the fabric, for tests and quick looks."""
