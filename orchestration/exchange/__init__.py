"""Others' results and inputs: into run folders, and out of them again."""
