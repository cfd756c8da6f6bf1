"""A first campaign, written for answers to three questions: `closloop init`."""
