"""Learners, one file each, offered by their tuners' names in the group `closloop.learners`.

`tuners.learning.learner.Learner` says what a learner is; a user's own is one file too.
"""
