"""Summaries, statistics, reports and comparisons of finished trials."""
