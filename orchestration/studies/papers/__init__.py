"""The papers' campaigns: their runs put beside what the papers print."""
