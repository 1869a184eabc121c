"""`python -m sightline` is the `sightline` command."""

import sys

from sightline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
