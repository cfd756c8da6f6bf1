"""SONiC switches: which configuration they accept, and what their counters mean."""
