"""Campaign files: a strict schema, factors crossed into trials, and the plan of them."""
