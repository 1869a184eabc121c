"""The typefaces: which of them training sees, and which it never does."""

import functools
from pathlib import Path

from PIL import ImageFont

import sightline.data
from sightline.evals.signs.example import Split

FOLDER = Path(sightline.data.__file__).parent / "fonts"

FONTS: dict[Split, tuple[str, ...]] = {
    "train": (
        "Arimo-Regular.ttf",
        "Arimo-Bold.ttf",
        "Cabin-SemiBold.otf",
        "Cantarell-Bold.otf",
        "ComicNeue-Bold.otf",
        "Cousine-Regular.ttf",
        "DejaVuSans-Bold.ttf",
        "DejaVuSerif-Bold.ttf",
        "Dosis-SemiBold.otf",
        "Go-Medium-Italic.ttf",
        "JetBrainsMono-Bold.ttf",
        "LeagueSpartan-SemiBold.otf",
        "Quicksand-Bold.ttf",
        "RobotoCondensed-Bold.ttf",
        "RobotoSlab-Bold.otf",
        "Tinos-Regular.ttf",
        "Tinos-BoldItalic.ttf",
    ),
    "heldout": ("Caladea-Bold.ttf", "FiraCode-Medium.ttf", "OpenSans-Semibold.ttf"),
}


@functools.lru_cache(maxsize=1024)
def load_font(name: str, em: int) -> ImageFont.FreeTypeFont:
    """By path, so that FreeType maps the file once for all sizes. The basic layout is the one every Pillow has."""
    return ImageFont.truetype(str(FOLDER / name), em, layout_engine=ImageFont.Layout.BASIC)


@functools.cache
def cap_height(name: str) -> float:
    """Height of a capital letter as a share of the em."""
    box = load_font(name, 200).getbbox("H", anchor="ls")
    return -box[1] / 200
