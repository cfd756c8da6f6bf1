"""How a package declares a verb of the command line, in the entry-point group `closloop.verbs`."""

from __future__ import annotations

from dataclasses import dataclass

EXPERIMENTS = "Experiments"
RESULTS = "Results"
TUNERS = "Tuners and congestion controls"
RACKS = "Racks and machines"
STUDIES = "Studies"
# In the order in which the help shows them. Panels of other packages come after these.
PANELS = (EXPERIMENTS, RESULTS, TUNERS, RACKS, STUDIES)


@dataclass(frozen=True)
class Verb:
    """A verb: its name, the first paragraph of its help, and the function or app that runs it.

    `target` is `module:name`; the module is imported when the verb is called. `panel` is the
    heading in the help under which the verb is listed.
    """

    name: str
    help: str
    target: str
    panel: str = EXPERIMENTS
