"""What another server wants encoded must fit together, views that are made of others too: engine/remote/check_item.py."""

from dataclasses import replace
from typing import Any

import pytest

from encoder.test_views import SPEC, SQUARED, WINDOWS, in_views
from family_processors import make_processor
from prompt.builders import image_item
from sightline.engine.remote.check_item import check_item
from sightline.errors import MediaError
from sightline.types import MediaItem, View

PROCESSOR = make_processor("qwen3-vl", SPEC)
LARGE = 1 << 13


def item(*views: View) -> MediaItem:
    return in_views(image_item(2, 2), *views)


@pytest.mark.parametrize(
    "views",
    [
        (View.whole((56, 84)),),
        (View.whole((56, 56), "bilinear", WINDOWS), View.whole((28, 28), "bilinear", SQUARED)),
        (View(resized=(50, 50), canvas=(56, 56), tile=(28, 28), offset=(6, 0), of=WINDOWS),),
    ],
)
def test_views_that_fit(views: tuple[View, ...]) -> None:
    check_item(item(*views), PROCESSOR)


def chain(length: int) -> View:
    made = View.whole((28, 28))
    for _ in range(length):
        made = View.whole((28, 28), of=made)
    return made


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (View.whole((56, 56), of=View.whole((2 * LARGE, LARGE))), "more than 67,108,864 pixels"),
        (View.whole((56, 56), of=replace(WINDOWS, of=View((9000, 9000), (9000, 9000), (90, 90)))), "more than 67,108,864"),
        (View.whole((56, 56), of=View((LARGE, LARGE), (LARGE, LARGE), (1, 1), of=WINDOWS)), "more than 67,108,864 pixels"),
        (View.whole((56, 56), of=replace(SQUARED, resized=(LARGE, 2 * LARGE))), "more than 67,108,864 pixels"),
        (View.whole((56, 56), of=replace(WINDOWS, tile=(0, 40))), "do not fit"),
        (View.whole((56, 56), of=replace(WINDOWS, tile=(33, 40))), "do not fit"),
        (View.whole((56, 56), of=replace(WINDOWS, offset=(80, 0))), "do not fit"),
        (View.whole((56, 56), of=replace(SQUARED, resized=(75, -1))), "do not fit"),
        (View.whole((50, 56), of=WINDOWS), "do not fit"),
        (chain(4), "made of more than 3 others"),
        (chain(400), "made of more than 3 others"),
    ],
)
def test_views_of_views_that_do_not(view: View, words: str) -> None:
    """Red if a few bytes of a message make a worker fill its memory, divide by zero or follow an endless chain."""
    plain: Any = item(View.whole((56, 56)))
    with pytest.raises(MediaError, match=words):
        check_item(replace(plain, views=(view,)), PROCESSOR)


def test_tiles_of_tiles_are_counted() -> None:
    """Red if a grid of the outer view's tiles alone passes."""
    right = item(View.whole((56, 56), "bilinear", WINDOWS))
    check_item(right, PROCESSOR)
    with pytest.raises(MediaError, match=r"has a grid of \[1, 4, 4\] patches where its view makes \[4, 4, 4\]"):
        check_item(replace(right, grids=((1, 4, 4),), rows=4), PROCESSOR)
