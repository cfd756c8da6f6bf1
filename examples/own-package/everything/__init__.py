"""One of each thing that a package can add to closloop: a file each."""

from orchestration.core.verb import Verb

VERBS = (Verb("greet", "Say which campaigns ran here.", "everything.verb:greet"),)
