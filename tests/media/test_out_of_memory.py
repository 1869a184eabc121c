"""A machine without memory is not the file's fault: the server says 503, not 400. A file that asks for too much is refused."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from PIL import ImageFile

from media.pictures import encoded, picture
from sightline.config import MediaConfig
from sightline.encoder.decoding.helper import _death
from sightline.engine.process import failure_of
from sightline.errors import HostMemoryError, MediaError
from sightline.media import decoder_errors
from sightline.media.decode import decode_image
from sightline.media.source import load_image
from sightline.prompt.template import ChatTemplate
from sightline.server.errors import failed, refused

DECODE_WITH_LITTLE_MEMORY = """
import io, resource
from PIL import Image
from sightline.config import MediaConfig
from sightline.errors import HostMemoryError
from sightline.media.decode import decode_image
from sightline.media.source import load_image
file = io.BytesIO()
Image.new("RGB", (8000, 8000)).save(file, "PNG")
ref = load_image(file.getvalue(), MediaConfig())
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, -1))
try:
    decode_image(ref)
except HostMemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_picture_that_does_not_fit_now() -> None:
    """In a process that may take 100 MB more. Red when it is called a bad picture ("MemoryError", a 400)."""
    done = subprocess.run([sys.executable, "-c", DECODE_WITH_LITTLE_MEMORY], capture_output=True, text=True, timeout=120)
    assert "cannot be decoded now: the machine has not enough memory free." in done.stdout, done.stderr


def test_decoders_also_say_it_of_broken_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when whatever Pillow calls a lack of memory is a 503: then a client chooses what the server says of itself."""

    def too_much(self: ImageFile.ImageFile) -> None:
        raise MemoryError

    ref = load_image(encoded(picture(), "PNG"), MediaConfig())
    monkeypatch.setattr(ImageFile.ImageFile, "load", too_much)
    with pytest.raises(MediaError) as caught:
        decode_image(ref)
    assert not isinstance(caught.value, HostMemoryError)
    monkeypatch.setattr(decoder_errors, "is_short_of", lambda count: count >= 7 * ref.header.width * ref.header.height)
    with pytest.raises(HostMemoryError):
        decode_image(ref)


def test_it_is_a_503_with_a_time_to_come_back() -> None:
    """Wherever it was noticed: in the API process, in the engine, or by the system, which ends a helper."""
    item = SimpleNamespace(ref=SimpleNamespace(kind="image", source="x.png"))
    killed, crashed = _death(item, -9), _death(item, -11)
    assert isinstance(killed, HostMemoryError) and not isinstance(crashed, HostMemoryError)
    for error in (refused(killed), failed(failure_of(killed)), failed(failure_of(MemoryError()))):
        assert (error.status, error.code) == (503, "out_of_memory") and int(error.headers["Retry-After"]) > 0
    assert failed(failure_of(crashed)).status == 400


def test_a_template_that_meets_it_is_not_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a prompt that does not fit into memory is a mistake of the template's."""
    template = ChatTemplate("{{ raise_exception('x') }}")

    def no_memory(variables: object) -> str:
        raise MemoryError

    monkeypatch.setattr(template, "_template", SimpleNamespace(render=no_memory))
    with pytest.raises(MemoryError):
        template.render([{"role": "user", "content": "x"}])
