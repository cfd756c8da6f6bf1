"""Campaign files: a strict schema, factors crossed into trials, and the resulting plan."""
