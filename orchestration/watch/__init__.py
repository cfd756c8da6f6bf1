"""Read the state of a running campaign from its folder, for `closloop watch`."""
