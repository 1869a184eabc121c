"""Draws the pictures that `sightline demo` asks about: held-out scenes, one per skill. `python training/make_demo.py [DIR]`"""

import json
import sys
from pathlib import Path

from PIL import Image

import sightline.data
from sightline.evals.signs import make_example
from sightline.evals.signs.conversation import encode_clip

# Seeds chosen for looks, before any model was asked.
SEEDS = {
    "sign": 70002, "phone": 70001, "colour": 70004, "shape": 70008, "count": 70003, "locate": 70007, "chart": 70004,
    "two_images": 70006, "video": 70010,
}  # fmt: skip


def make_demo(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    asked = []
    for skill, seed in SEEDS.items():
        example = make_example(seed, "heldout", skill)
        images = [
            f"{skill}{'' if len(example.images) == 1 else f'_{number}'}.png" for number in range(1, 1 + len(example.images))
        ]
        for name, pixels in zip(images, example.images, strict=True):
            Image.fromarray(pixels).save(folder / name, optimize=True)
        videos = []
        if example.frames is not None:
            videos.append(f"{skill}.mkv")
            (folder / videos[0]).write_bytes(encode_clip(example.frames, example.fps))
        turn = example.turns[0]
        asked.append({"images": images, "videos": videos, "question": turn.question, "answer": turn.answer})
    (folder / "questions.json").write_text(json.dumps(asked, indent=1) + "\n")


if __name__ == "__main__":
    make_demo(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(sightline.data.__file__).parent / "demo")
