"""A helper process that reads the sizes of a PDF's pages: `python -m sightline.media.pdf_process MOST_PAGES SECONDS MEGABYTES`.

The file is its standard input; its standard output is JSON, {"sizes": [[width, height], …]} in points or {"error": sentence},
in which the file is called {source}. One process a file: what a file does to pdfium, no other file sees.
"""

import json
import os
import resource
import signal
import sys

from sightline.errors import MediaError
from sightline.host_memory import limit_more_memory
from sightline.media.pdfium import page_sizes

_NICENESS = 10  # whoever serves tokens goes first


def main() -> None:
    most_pages, seconds, megabytes = map(int, sys.argv[1:])
    os.nice(_NICENESS)
    signal.alarm(seconds + 1)  # the parent ends it before, if it is still there
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data = sys.stdin.buffer.read()
    limit_more_memory(megabytes << 20)
    try:
        answer: dict[str, object] = {"sizes": page_sizes(data, "{source}", most_pages)}
    except MediaError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
