"""A SONiC switch as seen from the switch: Redis, CONFIG_DB, counters, streams."""
