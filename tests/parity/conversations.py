"""The conversations that parity is checked on: text and images (in memory, so that nothing has to be downloaded)."""

from typing import Any

import numpy as np
from PIL import Image

Messages = list[dict[str, Any]]


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Smooth colour with some detail: neither noise nor flat."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    detail = random.integers(-20, 21, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(image).astype(int) + detail, 0, 255).astype(np.uint8))


def _user(*parts: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts]
    return {"role": "user", "content": content}


def conversations() -> dict[str, Messages]:
    wide, tall, small = picture(300, 180, 1), picture(190, 330, 2), picture(120, 90, 3)
    return {
        "text only": [{"role": "user", "content": "Count from one to ten, please."}],
        "several sizes": [_user("Compare ", wide, " with ", tall, " and ", small, ". What differs?")],
        "image first": [_user(wide, "What is this?")],
        "image last": [_user("Look at this: ", tall)],
        "adjacent images": [_user("Two: ", small, wide, " Which is larger?")],
        "same image twice": [_user(wide, " and again ", wide, " Same?")],
        "several turns": [
            {"role": "system", "content": "Answer briefly. Ünïcödé."},
            _user(small, "What?"),
            {"role": "assistant", "content": "A picture."},
            _user("And this ", tall, "?"),
        ],
    }


# Merged grids (rows, columns) whose sides leave 0, 1 and 3 after whole windows of 4; 28 pixels each for Qwen2.5-VL.
WINDOW_GRIDS = [(4, 4), (8, 4), (5, 4), (7, 5), (4, 7), (5, 9), (7, 7), (3, 3), (1, 4)]


def window_conversation(rows: int, columns: int) -> Messages:
    return [_user("See ", picture(28 * columns, 28 * rows, rows * 16 + columns), " now")]
