"""The command line: one thin module per verb, which parses, calls one function, returns a code."""
