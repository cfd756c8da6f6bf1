"""What leaves a device as it was: its lease, dead-man's timer, and snapshot.

`state` takes and restores a snapshot, `deadman_process` restores it when the controller falls
silent, `shared_folder` is where runs of several accounts meet.
Must not import: numpy, pyroute2, orchestration.device, orchestration.backends.
"""

__all__ = ["deadman_process", "identity", "records", "shared_folder", "state"]
