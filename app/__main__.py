"""`python -m app` is the command `beforehand`."""

import sys

from app.entrypoints.cli import main

if __name__ == "__main__":
    sys.exit(main())
