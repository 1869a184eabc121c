"""Whether published advisories name a version that constraints.txt pins; asks a database of them (OSV) by package and version.

    python .ci/advisories.py [--database URL]

Exit code 0: none does, or no database could be reached, which is said. 1: some do, each with a line.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
DATABASE = "https://api.osv.dev"


def pins(text: str) -> list[tuple[str, str]]:
    rows = [line.split("==") for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, version) for name, version in rows]


def advisories(pinned: list[tuple[str, str]], database: str) -> dict[tuple[str, str], list[str]]:
    """Ids of advisories by package and version."""
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in pinned]
    request = urllib.request.Request(
        f"{database}/v1/querybatch", json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        results = json.load(answer)["results"]
    if len(results) != len(pinned):
        raise ValueError(f"{len(results)} results for {len(pinned)} packages")
    found = {}
    for pin, result in zip(pinned, results, strict=True):
        if named := sorted(one["id"] for one in result.get("vulns", ())):
            found[pin] = named
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", default=DATABASE)
    parser.add_argument("--constraints", type=Path, default=CONSTRAINTS)
    arguments = parser.parse_args()
    pinned = pins(arguments.constraints.read_text(encoding="utf-8"))
    try:
        found = advisories(pinned, arguments.database)
    except (OSError, ValueError, KeyError) as error:  # no network, or not what was expected: nothing is known
        print(f"Advisories were not checked: the database at {arguments.database} cannot be asked ({error}).")
        return 0
    for (name, version), named in found.items():
        print(f"{name} {version}: {', '.join(named)}")
    print(f"{len(pinned)} pinned packages, {len(found)} of them named by advisories.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
