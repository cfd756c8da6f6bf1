"""Has the guest's kernel look at policies of one's own before a trial needs them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from collectors.bpf.policy import PolicyError, policy_object
from orchestration.backends.emulated.kernel.cache import find_kernel
from orchestration.backends.emulated.launcher import run_guest
from orchestration.model.errors import InputError, TrialError
from orchestration.model.trial import TrialSpec

# The file in a job's folder that names the policy to load, in place of a trial.
POLICY = "policy"
_MEMORY_BYTES = 256 << 20


def check_policies(trials: Sequence[TrialSpec]) -> None:
    """Load the policies that trials name, each in a guest of its own, which takes a second.

    Without a kernel only what can be read from the object is checked. Raises InputError with the
    verifier's reason in plain words.
    """
    specs = [trial.host.roce for trial in trials if trial.host.roce is not None]
    for program in dict.fromkeys(spec.program for spec in specs if spec.program):
        try:
            made = policy_object(Path(program))
            kernel = find_kernel()
            if kernel is None:
                continue
            with tempfile.TemporaryDirectory(prefix="closloop-policy-") as folder:
                Path(folder, POLICY).write_text(str(made.absolute()))
                run_guest(kernel, Path(folder), _MEMORY_BYTES, lambda message: None)
        except (PolicyError, TrialError) as error:
            raise InputError.single(program, error.message, error.remedy) from error
