"""What the scripts share: where the server is, a picture, and a form whose every answer is short."""

import base64
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

URL, FOLDER = sys.argv[1:3]  # of the server, and of the model
MODEL = "sightline-embedded"
SIGN = base64.b64encode((Path(FOLDER).parent / "demo" / "sign.png").read_bytes()).decode()  # says PIANO


class Seen(BaseModel):
    """What is seen. It names no additionalProperties, as most people's models do not."""

    colour: Literal["red", "blue"]
    count: int = Field(ge=0, le=9)


def check(seen: object) -> None:
    assert isinstance(seen, Seen) and seen.colour in ("red", "blue") and 0 <= seen.count <= 9, seen
