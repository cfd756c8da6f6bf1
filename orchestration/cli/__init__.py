"""The command line: one thin module a verb. Each parses, calls one function, returns a code."""
