"""`sightline serve` with the engine process of odd_engine.py: `python odd_server.py BEHAVIOUR FILE [flags of serve]`."""

import argparse
import sys
from pathlib import Path

from sightline.cli.serve import add_command, serve_config
from sightline.server.serve import serve

ENGINE = Path(__file__).with_name("odd_engine.py")


def main() -> int:
    behaviour, file, *flags = sys.argv[1:]
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    config = serve_config(parser.parse_args(["serve", *flags]))
    return serve(config, (sys.executable, str(ENGINE), behaviour, file))


if __name__ == "__main__":
    sys.exit(main())
