"""Exchange with other tools: import their results and flows, export trials as their input."""
