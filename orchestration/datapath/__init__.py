"""The data path of the emulated fabric: C for the guest's kernel, and how Python talks to it."""
