"""SONiC switches: what their configuration may be, and what their counters say."""
