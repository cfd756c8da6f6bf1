"""Trials on the nodes of a Ray cluster. Ray is imported where a cluster is used, nowhere else."""
