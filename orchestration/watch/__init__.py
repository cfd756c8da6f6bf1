"""A run while it goes on, read from its folder: what `closloop watch` shows."""
