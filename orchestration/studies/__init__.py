"""Studies made with the product: benchmarks, the papers' campaigns, fidelity."""
