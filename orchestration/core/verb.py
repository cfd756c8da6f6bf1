"""A verb of the command line, as a package declares it: found through `closloop.verbs`."""

from __future__ import annotations

from dataclasses import dataclass

EXPERIMENTS = "Experiments"
RESULTS = "Results"
TUNERS = "Tuners and congestion controls"
RACKS = "Racks and machines"
STUDIES = "Studies"
# In the order in which the help shows them; others of users' packages come after them.
PANELS = (EXPERIMENTS, RESULTS, TUNERS, RACKS, STUDIES)


@dataclass(frozen=True)
class Verb:
    """A verb: its name, the first paragraph of its help, and where its function or app is.

    `target` is `module:name`; the module is imported when the verb is called. `panel` is the
    heading that it stands under in the help.
    """

    name: str
    help: str
    target: str
    panel: str = EXPERIMENTS
