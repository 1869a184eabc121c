"""Damages good files at random and reads the results, alone in a process, so that a crash or a greedy decoder shows.

Prints as JSON how many were read and refused, the slowest in seconds, and the most memory in MB.
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from media.pictures import encoded, exif, picture, video
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.decode import decode_image, decode_video
from sightline.media.pillow import silence_warnings
from sightline.media.source import load_image, load_video

LIMITS = MediaConfig(max_image_pixels=4_000_000, max_video_frames=1000)


def good_images(folder: str) -> list[bytes]:
    formats = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "JPEG2000", "AVIF")
    made = [encoded(picture(height=60, width=80), name, **({"exif": exif(6)} if name != "PPM" else {})) for name in formats]
    made.append(encoded(picture(height=60, width=80), "JPEG", progressive=True))
    found = sorted(Path(folder).glob("*")) if folder else []
    return made + [path.read_bytes() for path in found if path.stat().st_size < 100_000]


def good_videos() -> list[bytes]:
    return [
        video(6),
        video(6, codec="mpeg4", container="mp4", pixel_format="yuv420p"),
        video(6, codec="mpeg4", container="avi", pixel_format="yuv420p"),
    ]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, pieces cut, doubled or blown up; mostly near the start, where the header is."""
    mutant = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        place = int(len(mutant) * chance.random() ** 3) if mutant else 0
        how = chance.randrange(6)
        if how < 3 and mutant:
            mutant[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif how == 3:
            del mutant[place : place + chance.choice((1, 2, 4, 100))]
        elif how == 4:
            mutant[place:place] = mutant[place : place + chance.choice((4, 100, 5000))]
        else:
            del mutant[max(place, 1) :]
    return bytes(mutant)


def outcomes(images: int, videos: int, folder: str) -> Iterator[tuple[bool, float]]:
    chance = random.Random(29)
    for count, goods, load in ((images, good_images(folder), load_image), (videos, good_videos(), load_video)):
        for number in range(count):
            data = damaged(goods[number % len(goods)], chance)
            began = time.perf_counter()
            try:
                ref = load(data, LIMITS)
                decode_image(ref) if ref.kind == "image" else decode_video(ref, range(min(ref.header.frame_count, 4)))
                read = True
            except MediaError as error:
                assert str(error).endswith(".") and "\n" not in str(error), str(error)
                read = False
            yield read, time.perf_counter() - began


def peak_memory_mb() -> float:
    """Of this process alone; what getrusage says starts with the peak of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    silence_warnings()
    found = list(outcomes(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
    print(
        json.dumps(
            {
                "read": sum(read for read, _ in found),
                "refused": sum(not read for read, _ in found),
                "slowest_s": max(seconds for _, seconds in found),
                "memory_mb": peak_memory_mb(),
            }
        )
    )
