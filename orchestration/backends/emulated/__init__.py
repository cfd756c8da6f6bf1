"""The fabric as network namespaces inside the virtual-time kernel.

On the host, `fabric` turns a testbed into netlink requests and `backend` boots a guest with them.
In the guest, `guest` is the first process and `rig` is the fabric that the loop drives.
"""
