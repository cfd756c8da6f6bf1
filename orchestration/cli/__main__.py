"""`python -m orchestration.cli`: the same as `closloop`."""

from orchestration.cli.main import main

if __name__ == "__main__":
    main()
