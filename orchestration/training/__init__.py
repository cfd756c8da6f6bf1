"""Trains learned tuners: episodes side by side on a backend, a learner, its checkpoints."""
