"""What parity is checked on: pictures with windows and without, of all the shapes that are treated apart.

Sizes are width x height, for a tiny checkpoint: views of 168 pixels, windows of 112, a longest side of 672.
"""

from typing import Any

from parity.conversations import Messages, picture

WHOLE = (100, 90)
AS_LARGE_AS_A_VIEW = (168, 120)  # no windows yet
WINDOWS = (300, 180)
# Name, size, and windows down and across.
SHAPES = {
    "as large as a view": (AS_LARGE_AS_A_VIEW, (0, 0)),
    "tiny": ((3, 2), (0, 0)),
    "elongated, with windows of its shorter side": ((160, 90), (1, 2)),
    "two windows that it does not fill": ((180, 80), (1, 2)),
    "windows in two rows": (WINDOWS, (2, 3)),
    "upright": ((170, 330), (3, 2)),
    "very elongated": ((60, 400), (7, 1)),
    "a line, squared": ((20, 100), (0, 0)),
    "a long line, squared": ((500, 24), (5, 5)),
    "shrunk": ((900, 700), (5, 6)),
    "shrunk, and an odd number of windows": ((790, 331), (3, 6)),
}


def user(*parts: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts]
    return {"role": "user", "content": content}


def conversations() -> dict[str, Messages]:
    whole, windows, tall, thin = picture(*WHOLE, 1), picture(*WINDOWS, 2), picture(90, 190, 3), picture(160, 90, 4)
    return {
        "text only": [{"role": "user", "content": "Count from one to ten, please."}],
        "one view": [user(whole, "What is this?")],
        "windows": [user("Look at this: ", windows)],
        "several shapes": [user("Compare ", windows, " with ", tall, " and ", whole, ". What differs?")],
        "side by side": [user("Two: ", thin, whole, " Which is larger?")],
        "same image twice": [user(tall, " and again ", tall, " Same?")],
        "several turns": [
            {"role": "system", "content": "Answer briefly. Ünïcödé."},
            user(whole, "What?"),
            {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nA picture."},
            user("And this ", thin, "?"),
        ],
    }
