"""The agent that runs on devices, and the controller's connection to it."""
