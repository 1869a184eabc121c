"""The environment of the clients, which pin much."""

from pathlib import Path

from own_environment import environment_python

REQUIREMENTS = Path(__file__).parent / "requirements.txt"


def client_python() -> Path:
    """Skips the test where no package index is reachable."""
    return environment_python("clients", REQUIREMENTS)
