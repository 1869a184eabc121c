"""A list of images as a video: packed into one file, each with its header; all of them are seen, nothing is sampled.

```
msgpack    [[header, encoded bytes], …]
```
"""

from collections.abc import Iterator, Sequence

import msgspec

from sightline.errors import MediaError
from sightline.media.cost import image_megapixels
from sightline.media.digests import digest_of
from sightline.types import FRAMES, ImageHeader, MediaRef, VideoHeader

FPS = 2.0  # of frames that come without a rate: what models are trained on and their own tools take
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[ImageHeader, bytes]])


def pack_frames(stills: Sequence[MediaRef], name: str, fps: float = FPS) -> MediaRef:
    headers = [still.header for still in stills if isinstance(still.header, ImageHeader)]
    if not headers:
        raise MediaError(f"Video {name} cannot be read: it is an empty list of frames.")
    width, height = headers[0].width, headers[0].height
    for number, header in enumerate(headers):
        if (header.width, header.height) != (width, height):
            raise MediaError(
                f"Video {name} cannot be used: frame {number} has {header.width}x{header.height} pixels, but frame 0 has "
                f"{width}x{height}."
            )
    work = sum(map(image_megapixels, headers))
    digest = digest_of(b"FRAMES" + b"".join(still.digest for still in stills))
    data = _encoder.encode([(header, still.data) for header, still in zip(headers, stills, strict=True)])
    header_of_all = at_rate(VideoHeader(FRAMES, width, height, len(headers), fps, 0.0, still_megapixels=work), fps)
    return MediaRef("video", data, digest, header_of_all, name)


def at_rate(header: VideoHeader, fps: float) -> VideoHeader:
    return msgspec.structs.replace(header, fps=fps, duration=header.frame_count / fps)


def unpack_frames(ref: MediaRef) -> Iterator[MediaRef]:
    """Each as an image, without its digest."""
    for number, (header, data) in enumerate(_decoder.decode(ref.data)):
        yield MediaRef("image", data, b"", header, f"{ref.source}, frame {number},")
