"""Local files: one folder, ordinary files, no way out."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media import files
from sightline.media.files import path_of_url, read_file
from sightline.media.limits import ByteAllowance
from sightline.media.source import load_image

DATA = b"some bytes"


def read(path: Path | str, root: Path | str | None = "/") -> bytes:
    return read_file(Path(path), None if root is None else str(root), ByteAllowance("image", "X", MediaConfig(max_image_mb=1)))


def refused(path: Path | str, reason: str, root: Path | str | None = "/") -> None:
    with pytest.raises(MediaError) as caught:
        read(path, root)
    assert str(caught.value) == f"Image X {reason}"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder that is allowed, and one beside it with a similar name; both have a file a.jpg."""
    allowed, beside = tmp_path / "media", tmp_path / "media-private"
    for folder in (allowed, beside):
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "a.jpg").write_bytes(DATA)
        (folder / "deep" / "er" / "b.jpg").write_bytes(DATA)
    return allowed, beside


def test_files_inside(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, beside = folders
    (allowed / "link.jpg").symlink_to("deep/er/b.jpg")
    (allowed / "short").symlink_to(allowed / "deep" / "er")
    (beside / "in.jpg").symlink_to(allowed / "a.jpg")
    inside = [allowed / "a.jpg", allowed / "deep/er/b.jpg", allowed / "link.jpg", allowed / "short/b.jpg", beside / "in.jpg"]
    for path in [*inside, f"{beside}/../media/a.jpg", f"{allowed}/./deep/../a.jpg"]:
        assert read(path, allowed) == DATA
    assert read(allowed / "a.jpg", "/") == DATA
    monkeypatch.chdir(allowed)
    assert read("a.jpg", allowed) == read("a.jpg", ".") == DATA
    linked = allowed.parent / "root"
    linked.symlink_to(allowed)
    assert read(linked / "a.jpg", linked) == read(allowed / "a.jpg", linked) == DATA


# Red if .. or a link leads out of the allowed folder, if a folder with the same start counts as inside, or if the answer tells
# whether a file outside exists.
def test_ways_out(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, beside = folders
    (allowed / "out.jpg").symlink_to(beside / "a.jpg")
    (allowed / "folder").symlink_to(beside)
    (allowed / "up").symlink_to("..")
    (allowed / "twice.jpg").symlink_to("out.jpg")
    (allowed / "dangling.jpg").symlink_to(beside / "missing.jpg")
    (allowed / "process").symlink_to("/proc/self")
    outside = "cannot be read: it is outside the folder of --allowed-local-media-path."
    for path in (
        beside / "a.jpg",
        f"{allowed}/../media-private/a.jpg",
        allowed / "out.jpg",
        allowed / "folder" / "a.jpg",
        allowed / "up" / "media-private" / "a.jpg",
        allowed / "twice.jpg",
        allowed / "dangling.jpg",
        allowed / "process" / "environ",
        beside / "missing.jpg",
        "/etc/passwd",
        "/",
    ):
        refused(path, outside, allowed)
    monkeypatch.chdir(allowed)
    refused("../media-private/a.jpg", outside, allowed)


def test_no_folder_means_no_file(folders: tuple[Path, Path]) -> None:
    refused(folders[0] / "a.jpg", "cannot be read: local files are not allowed (--allowed-local-media-path).", None)
    refused("/no/such/file", "cannot be read: local files are not allowed (--allowed-local-media-path).", None)
    server = MediaConfig.for_server()
    for source in ("/etc/hostname", "file:///etc/hostname", "a.jpg", "", Path("/etc/hostname")):
        with pytest.raises(MediaError, match=r"local files are not allowed \(--allowed-local-media-path\)\.$"):
            load_image(source, server)
    assert MediaConfig.for_server(allowed_local_media_path="/data").allowed_local_media_path == "/data"


# Red if anything but an ordinary file is opened for reading: a pipe would wait for its writer, a device may never end.
def test_only_ordinary_files(folders: tuple[Path, Path]) -> None:
    allowed, _ = folders
    os.mkfifo(allowed / "pipe")
    (allowed / "loop").symlink_to(allowed / "loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(allowed / "socket"))
        refused(allowed / "socket", "cannot be read: No such device or address.", allowed)
    refused(allowed / "pipe", "cannot be read: it is not a file.", allowed)
    refused(allowed, "cannot be read: it is not a file.", allowed)
    refused(allowed / "deep", "cannot be read: it is not a file.", allowed)
    refused("/dev/zero", "cannot be read: it is not a file.")
    refused(allowed / "a.jpg" / "b.jpg", "cannot be read: Not a directory.", allowed)
    refused(allowed / "no.jpg", "cannot be read: No such file or directory.", allowed)
    refused(allowed / ("x" * 300), "cannot be read: File name too long.", allowed)
    with pytest.raises(MediaError, match="cannot be read: "):
        read(allowed / "loop", allowed)
    with pytest.raises(MediaError, match="cannot be read: "):
        read("a\0b", allowed)


# Red if files of the kernel are read: their size is 0, and some never end or tell of the process.
@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/self/maps", "/proc/kmsg", "/proc/1/cmdline", "/sys/kernel/uevent_seqnum"]
)
def test_files_of_the_kernel(path: str) -> None:
    refused(path, "cannot be read: it is outside the folder of --allowed-local-media-path.")


# Red if a folder that becomes a link between the check and the opening is followed.
def test_a_folder_that_is_swapped_for_a_link(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, beside = folders
    opening = files._open_below

    def swap_first(folder: Path, names: tuple[str, ...]) -> int:
        (allowed / "deep").rename(allowed / "was")
        (allowed / "deep").symlink_to(beside / "deep")
        return opening(folder, names)

    monkeypatch.setattr(files, "_open_below", swap_first)
    refused(allowed / "deep" / "er" / "b.jpg", "cannot be read: Not a directory.", allowed)


def test_a_file_that_is_swapped_for_a_link(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, beside = folders
    opening = files._open_below

    def swap_first(folder: Path, names: tuple[str, ...]) -> int:
        (allowed / "a.jpg").unlink()
        (allowed / "a.jpg").symlink_to(beside / "a.jpg")
        return opening(folder, names)

    monkeypatch.setattr(files, "_open_below", swap_first)
    refused(allowed / "a.jpg", "cannot be read: Too many levels of symbolic links.", allowed)


# Red if the size is checked only when the file has been read, or a file that grows is read to its end.
def test_sizes(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, _ = folders
    large = allowed / "large"
    with large.open("wb") as file:
        file.truncate(5_000_000_000)  # a hole: takes no room
    refused(large, "has 5000.0 MB, more than the 1 MB allowed (--max-image-mb).", allowed)
    large.write_bytes(bytes(1_000_000))
    assert len(read(large, allowed)) == 1_000_000
    growing = allowed / "a.jpg"
    reading = files._read_all

    def grow_first(file: int, size: int, allowance: ByteAllowance) -> bytes:
        growing.write_bytes(bytes(3_000_000))
        return reading(file, size, allowance)

    monkeypatch.setattr(files, "_read_all", grow_first)
    refused(growing, "has more than the 1 MB allowed (--max-image-mb).", allowed)


# Red if a descriptor stays open, on whatever way out.
def test_descriptors_are_closed(folders: tuple[Path, Path]) -> None:
    allowed, _ = folders
    os.mkfifo(allowed / "pipe")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("a.jpg", "deep/er/b.jpg", "no", "pipe", "deep/no/b", "a.jpg/b"):
        with contextlib.suppress(MediaError):
            read(allowed / name, allowed)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a/b.jpg", "/a/b.jpg"),
        ("FILE://localhost/a/b.jpg", "/a/b.jpg"),
        ("file://LOCALHOST/a", "/a"),
        ("file:///a%20b%2Fc%23.jpg", "/a b/c#.jpg"),
        ("file:///a%252e%252e", "/a%2e%2e"),  # decoded once
        ("file:///a b #1.jpg", "/a b #1.jpg"),
        ("file://", "/"),
    ],
)
def test_paths_of_urls(url: str, path: str) -> None:
    assert path_of_url(url, "Image X") == Path(path)


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "..", "user@localhost", "localhost:80"])
def test_file_urls_name_no_host(host: str) -> None:
    with pytest.raises(MediaError) as caught:
        path_of_url(f"file://{host}/a.jpg", "Image X")
    assert str(caught.value) == f"Image X cannot be read: a file URL may not name host {host!r}."


def test_encoded_dots_do_not_lead_out(folders: tuple[Path, Path]) -> None:
    allowed, _ = folders
    limits = MediaConfig(allowed_local_media_path=str(allowed))
    for text in (f"file://{allowed}/%2e%2e/media-private/a.jpg", f"file://{allowed}/..%2Fmedia-private/a.jpg"):
        with pytest.raises(MediaError, match=r"it is outside the folder of --allowed-local-media-path\.$"):
            load_image(text, limits)
    with pytest.raises(MediaError, match="No such file or directory"):
        load_image(f"file://{allowed}/%252e%252e/media-private/a.jpg", limits)
