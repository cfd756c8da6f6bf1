"""The fabric as network namespaces inside the virtual-time kernel.

On the host: `fabric` turns a testbed into netlink requests, `backend` boots a guest with them.
In the guest: `guest` is its first process, `rig` the fabric under the loop.
"""
