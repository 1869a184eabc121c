"""The one door to PyAV: which containers it may open, which stream is the video, and what its exceptions become.

PyAV is imported when the first video comes: it loads all of ffmpeg, and images do without.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sightline.errors import MediaError, without_addresses
from sightline.media.decoder_errors import HEADER_BYTES, DecoderErrors

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream
    from numpy.typing import NDArray

# Demuxers that read nothing but the bytes they are given. Playlists (hls, concat, dash, sdp, …) name other files and URLs,
# and ffmpeg would open those on this machine: a way to read the server's disk.
_DEMUXERS = "mov,mp4,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,ivf,h264,hevc,obu,gif,mxf,nut"
_OPTIONS = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"}  # no protocol has that name


def open_video(data: bytes, source: str) -> "InputContainer":
    import av

    # Titles are often not UTF-8; they are of no use here, so they must not stop us. PyAV 19 no longer minds them.
    lenient: dict[str, Any] = {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "replace"}
    try:
        container: InputContainer = av.open(io.BytesIO(data), mode="r", options=dict(_OPTIONS), **lenient)
        return container
    except av.error.ArgumentError as error:  # what ffmpeg says to a container that is not on the list
        kinds = _DEMUXERS.replace(",", ", ")
        raise MediaError(f"Video {source} cannot be read: its container is none of {kinds}.") from error


def video_stream(container: "InputContainer", source: str) -> "VideoStream":
    """The first video stream; a cover picture attached to a sound file is not one."""
    from av.stream import Disposition

    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    raise MediaError(f"Video {source} cannot be read: it has no video stream.")


def rgb_converter() -> "Callable[[VideoFrame], NDArray[Any]]":
    """Frames of one video to [height, width, 3].

    frame.to_ndarray(format="rgb24") does the same, but PyAV up to 18 makes a converter with threads of its own for each frame,
    and from 19 on one for each thread that has ever asked, to be kept with a thread per core and 15 MB.
    """
    from av.video.reformatter import VideoReformatter

    converter = VideoReformatter()
    return lambda frame: converter.reformat(frame, format="rgb24").to_ndarray()


def holds_picture(codec: str, packet: "Packet[VideoStream]") -> bool:
    """Whether decoding this packet adds a frame to the video, as far as a look at its bytes can tell.

    Nearly always one packet is one frame. Not so: the empty packet that ends a stream, packets that an edit list cuts away,
    VP8's hidden reference frames, and the one-byte filler that DivX writes where frames are reordered.
    """
    if packet.size == 0 or packet.is_discard:
        return False
    if codec == "vp8":
        return bool(memoryview(packet)[0] & 0x10)  # the show_frame bit of the frame tag, RFC 6386 section 9.1
    if codec == "mpeg4":
        return b"\x00\x00\x01\xb6" in bytes(packet)  # the start code of a video object plane, ISO/IEC 14496-2
    return True


def ffmpeg_errors(source: str, needed: int = HEADER_BYTES) -> DecoderErrors:
    """Turns whatever PyAV raises on bad input into one MediaError. Its errors derive from OSError, ValueError and others."""

    def sentence(error: Exception) -> str:
        if isinstance(error, ModuleNotFoundError):
            return f"Video {source} cannot be read: the Python package {error.name} is not installed."
        from av.error import FFmpegError

        # The text of ffmpeg's errors has a number and a file name that mean nothing to a user; strerror is the sentence in it.
        reason = error.strerror if isinstance(error, FFmpegError) else " ".join(str(error).split())
        return f"Video {source} cannot be read: {without_addresses(reason or type(error).__name__).rstrip('.')}."

    return DecoderErrors(sentence, f"Video {source}", needed)
