"""Small PDFs, written here byte by byte: good ones, and ones that are made to be refused or to cost."""

import hashlib
import zlib
from collections.abc import Sequence

from PIL import Image

RED, GREEN, BLUE = (1, 0, 0), (0, 1, 0), (0, 0, 1)
_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")  # ISO 32000-1, algorithm 2
_FILE_ID = b"0123456789abcdef"


def pdf(*pages: tuple[int, int], fills: Sequence[tuple[int, int, int]] = (RED, GREEN, BLUE), rotate: int = 0) -> bytes:
    """Pages of (width, height) in points, each with its left half filled in its own colour, the rest white."""
    contents = [
        b"%d %d %d rg 0 0 %d %d re f" % (*fills[number % len(fills)], width // 2, height)
        for number, (width, height) in enumerate(pages)
    ]
    return written(_objects(pages, contents, rotate))


def pdf_of(content: bytes, resources: bytes = b"", extra: Sequence[bytes] = (), size: tuple[int, int] = (200, 100)) -> bytes:
    """One page with this content; `extra` are objects from number 5 on."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d %d]/Contents 4 0 R/Resources<<%s>>>>" % (*size, resources)
    return written([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 1/Kids[3 0 R]>>", page, stream(content), *extra])


def picture_pdf(*pictures: Image.Image) -> bytes:
    """Pages that each are a picture, at 144 pixels an inch."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>"]
    kids = b" ".join(b"%d 0 R" % (3 + 3 * number) for number in range(len(pictures)))
    objects.append(b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(pictures), kids))
    for number, picture in enumerate(pictures):
        first, (width, height) = 3 + 3 * number, picture.size
        used = b"/Contents %d 0 R/Resources<</XObject<</P %d 0 R>>>>" % (first + 1, first + 2)
        objects.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %g %g]%s>>" % (width / 2, height / 2, used))
        objects.append(stream(b"%g 0 0 %g 0 0 cm /P Do" % (width / 2, height / 2)))
        kind = b"/Type/XObject/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceRGB/BitsPerComponent 8" % (width, height)
        objects.append(stream(zlib.compress(picture.convert("RGB").tobytes()), kind + b"/Filter/FlateDecode"))
    return written(objects)


def bomb(levels: int = 40) -> bytes:
    """A page whose forms draw each other twice: 2 to the power of `levels` rectangles in a file of some kilobytes."""
    forms = [
        _form(b"/F%d Do /F%d Do" % (level + 1, level + 1), b"/F%d %d 0 R" % (level + 1, level + 6)) for level in range(levels)
    ]
    return pdf_of(b"/F0 Do", b"/XObject<</F0 5 0 R>>", [*forms, _form(b"0 0 50 50 re f", b"")])


def many_pages(count: int) -> bytes:
    """All the same page."""
    kids = b" ".join([b"3 0 R"] * count)
    return written(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Count %d/Kids[%s]>>" % (count, kids),
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 20 20]>>",
        ]
    )


def no_pages() -> bytes:
    return written([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 0/Kids[]>>"])


def encrypted(password: bytes) -> bytes:
    """The standard handler's first revision, 40 bits of RC4: a reader needs the password to open it."""
    objects = _objects([(200, 100)], [b"0 g"], 0)
    owner = _rc4(hashlib.md5(_padded(b"owner")).digest()[:5], _padded(password))
    permissions = (-4) & 0xFFFFFFFF
    key = hashlib.md5(_padded(password) + owner + permissions.to_bytes(4, "little") + _FILE_ID).digest()[:5]
    user = _rc4(key, _PADDING)
    handler = b"<</Filter/Standard/V 1/R 2/O<%s>/U<%s>/P -4>>" % (owner.hex().encode(), user.hex().encode())
    identifier = _FILE_ID.hex().encode()
    return written([*objects, handler], b"/Encrypt %d 0 R/ID[<%s><%s>]" % (len(objects) + 1, identifier, identifier))


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<</Length %d%s>>\nstream\n%s\nendstream" % (len(content), entries, content)


def written(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """Objects from number 1 on, of which the first is the catalogue."""
    data, offsets = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start, count = len(data), len(objects) + 1
    end = b"trailer<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (count, trailer, start)
    return data + b"xref\n0 %d\n0000000000 65535 f \n%s" % (count, table) + end


def _objects(pages: Sequence[tuple[int, int]], contents: Sequence[bytes], rotate: int) -> list[bytes]:
    kids = b" ".join(b"%d 0 R" % (3 + 2 * number) for number in range(len(pages)))
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(pages), kids)]
    for number, ((width, height), content) in enumerate(zip(pages, contents, strict=True)):
        box = b"/MediaBox[0 0 %d %d]/Rotate %d/Contents %d 0 R" % (width, height, rotate, 4 + 2 * number)
        objects += [b"<</Type/Page/Parent 2 0 R%s>>" % box, stream(content)]
    return objects


def _form(content: bytes, xobjects: bytes) -> bytes:
    return stream(content, b"/Type/XObject/Subtype/Form/BBox[0 0 200 100]/Resources<</XObject<<%s>>>>" % xobjects)


def _padded(password: bytes) -> bytes:
    return (password + _PADDING)[:32]


def _rc4(key: bytes, data: bytes) -> bytes:
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
