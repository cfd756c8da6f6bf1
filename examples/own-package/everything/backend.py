"""A backend: `backend: patient`, or `--on patient`."""

from dataclasses import replace

from orchestration.backends.fluid.backend import FluidBackend
from orchestration.core.capabilities import capabilities


class PatientBackend(FluidBackend):
    """The fluid model, whose records say by which backend they were made."""

    name = "patient"

    def run(self, run):
        """Run one trial."""
        record = super().run(run)
        return replace(record, facts={**record.facts, "ran_by": self.name})


CAPABILITIES = replace(
    capabilities("fluid"), name="patient", implementation="everything.backend:PatientBackend"
)
