"""`python -m sightline` is the `sightline` command."""

import sys

from sightline.cli.main import main

sys.exit(main())
