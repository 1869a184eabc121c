"""One item on its way to pixels, and the lane it goes: what is cheap in threads here, what is not in processes of its own."""

from dataclasses import dataclass, field

from sightline.encoder.decoding.cancellation import Cancellation
from sightline.encoder.decoding.pixels import Pixels, PixelState, result_shape
from sightline.errors import MediaError
from sightline.media.cost import frame_bytes, image_bytes, image_megapixels, video_gigapixels
from sightline.types import FRAMES, PDF, ImageHeader, MediaItem

# A third of a second of one core. A process of its own costs an item some milliseconds, and 0.3 s where one must be started.
CHEAP_MEGAPIXELS = 48
CHEAP_BYTES = 256 * 1024 * 1024  # of all frames of a video
# A megapixel of a photo takes 6 ms of a core as JPEG; of a moving one, 720p, H.264 takes 3.6, H.265 2.9, MPEG-4 1.3.
VIDEO_WORK = 0.5


@dataclass(eq=False)
class Lane:
    """A decoder of its own for items of a kind, with a share of the memory."""

    slots: int  # decodes at a time
    share: int  # bytes that are always its own; an item that needs more runs when its lane is empty, and counts as this much
    limit: int  # bytes that it may take when nobody else wants them
    running: int = 0
    charged: int = 0  # bytes of decodes in progress and of pixels that nobody has taken


@dataclass(eq=False)
class Job:
    item: MediaItem
    lane: Lane
    needed: int  # bytes while it is decoded
    limit_s: float | None = None  # how long a helper may take
    state: PixelState = PixelState.PENDING
    running: bool = False
    bytes: int = 0  # that it takes now
    pixels: Pixels | None = None
    error: MediaError | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)

    @property
    def waiting(self) -> bool:
        return self.state is PixelState.PENDING and not self.running

    @property
    def charge(self) -> int:
        return min(self.needed, self.lane.share)


def is_cheap(item: MediaItem) -> bool:
    header = item.ref.header
    if isinstance(header, ImageHeader):
        return image_megapixels(header) <= CHEAP_MEGAPIXELS and header.format != PDF  # what a page draws is not known
    work = header.still_megapixels if header.format == FRAMES else 1000 * video_gigapixels(item) * VIDEO_WORK
    cheap = work <= CHEAP_MEGAPIXELS
    return cheap and len(item.frame_indices) * frame_bytes(header) <= CHEAP_BYTES


def bytes_in_thread(item: MediaItem) -> int:
    """What decoding takes in this process: a still's peak, or all frames of a video beside the one that is converted."""
    header = item.ref.header
    if isinstance(header, ImageHeader):
        return image_bytes(header)
    return (len(item.frame_indices) + 1) * frame_bytes(header)


def bytes_in_helper(item: MediaItem) -> int:
    """As bytes_in_thread, with the encoded bytes, which go to the helper, and frames of the size that the model sees."""
    header = item.ref.header
    frames, height, width, channels = result_shape(item)
    source = image_bytes(header) if isinstance(header, ImageHeader) else frame_bytes(header)
    return source + frames * height * width * channels + len(item.ref.data)
