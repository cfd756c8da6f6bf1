"""Where a trial runs: emulated, fluid, simulated, hardware; and what is known of imported results.

A backend is one folder: `capabilities.py` says what it can do and is named by an entry point of
`closloop.backends`; `backend.py` checks and runs trials (`core.ports.Backend`); `rig.py` is the
fabric that the loop drives. `common` has what several share. A user's package does the same.
"""
