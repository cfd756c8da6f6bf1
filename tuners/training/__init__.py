"""Learners, one file each, offered by their tuners' names in the group `closloop.learners`.

`tuners.learning.learner.Learner` says what a learner is; a user's own is one file too.
Must not import: orchestration.backends, orchestration.campaign, orchestration.run.
"""

__all__: list[str] = []
