"""Where the tests of engine and server compute: on a CPU, unless SIGHTLINE_TEST_DEVICE says otherwise (CONTRIBUTING.md)."""

import os

DEVICE = os.environ.get("SIGHTLINE_TEST_DEVICE", "cpu")
