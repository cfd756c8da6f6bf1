"""What uses the product to show something: benchmarks, the papers, fidelity."""
