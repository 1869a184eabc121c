"""`python -m sightline`: the `sightline` command, and what torchrun starts."""

import sys

from sightline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
