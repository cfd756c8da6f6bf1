"""How an experiment is run: campaigns, backends, the loop, artifacts, analysis, command line."""
