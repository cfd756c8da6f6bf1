"""An index over campaigns: `closloop report` of several runs."""
