"""What closloop's Ansible modules share; it runs on devices.

Must not import: numpy, pydantic, orchestration.backends.
"""

__all__: list[str] = []
