"""The one door to pypdfium2, which runs in helper processes alone: sizes of pages without rendering, and pages rendered.

pdfium is a large library that parses what strangers wrote. Both processes that import this have limits on memory and time and
may be killed: media/pdf_process.py for sizes, encoder/decoding/process.py for pixels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sightline.errors import MediaError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pypdfium2 import PdfDocument

PageSize = tuple[float, float]  # (width, height) in points, 72 to the inch, as displayed
_PASSWORD, _SECURITY = 4, 5  # of pdfium's error codes; the others say in various ways that the file is damaged


def page_sizes(data: bytes, source: str, most_pages: int) -> list[PageSize]:
    with _opened(data, source) as document:
        count = len(document)
        if count > most_pages:
            raise too_many_pages(source, count, most_pages)
        if count == 0:
            raise MediaError(f"PDF {source} cannot be read: it has no pages.")
        return [document.get_page_size(page) for page in range(count)]


def render_page(data: bytes, source: str, page: int, width: int, height: int) -> "NDArray[np.uint8]":
    """[height, width, 3]: the page on white, with its annotations and what its forms are filled in with."""
    import pypdfium2.raw as pdfium
    from pypdfium2 import PdfBitmap

    with _opened(data, source) as document:
        document.init_forms()
        shown = document[page]
        bitmap = PdfBitmap.new_native(width, height, pdfium.FPDFBitmap_BGR)
        bitmap.fill_rect((255, 255, 255, 255), 0, 0, width, height)
        where = (0, 0, width, height, 0, pdfium.FPDF_ANNOT | pdfium.FPDF_REVERSE_BYTE_ORDER)
        pdfium.FPDF_RenderPageBitmap(bitmap, shown, *where)
        if document.formenv is not None:
            pdfium.FPDF_FFLDraw(document.formenv, bitmap, shown, *where)
        pixels: NDArray[np.uint8] = bitmap.to_numpy().copy()
        return pixels


def too_many_pages(source: str, count: int, most: int) -> MediaError:
    return MediaError(f"PDF {source} has {count:,} pages, more than the {most:,} allowed (--max-pdf-pages).")


@contextmanager
def _opened(data: bytes, source: str) -> "Iterator[PdfDocument]":
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
        try:
            yield document
        finally:
            document.close()
    except pypdfium2.PdfiumError as error:
        raise MediaError(f"PDF {source} cannot be read: {_reason(getattr(error, 'err_code', None))}.") from error


def _reason(code: int | None) -> str:
    if code == _PASSWORD:
        return "it is encrypted with a password"
    if code == _SECURITY:
        return "it is encrypted in a way that is not supported"
    return "it is damaged or has no pages"
