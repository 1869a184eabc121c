"""Lines of a file of requests."""

import json
from pathlib import Path

import pytest

from batch.running import row
from sightline.batch.input_file import BadRow, InputFile, Row, digest_of
from sightline.batch.result_files import ResultFile, result_line, write_all
from sightline.errors import ConfigError

URL = "/v1/completions"


def all_of(path: Path, answered: set[bytes] | None = None, max_mb: float = 1.0) -> tuple[list[Row | BadRow], InputFile]:
    file = InputFile(path, (URL,), set() if answered is None else answered, max_mb)
    found: list[Row | BadRow] = []
    while few := file.next_few():
        found += few
    return found, file


def text(number: int, **body: object) -> bytes:
    return json.dumps(row(f"row {number}", URL, prompt="a", **body)).encode()


def test_lines_and_their_places(tmp_path: Path) -> None:
    """A mark at the beginning, empty lines, \\r\\n, no newline at the end: each row has its line, and all bytes are counted."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + text(0) + b"\r\n\n  \n" + text(1) + b"\n[]\n" + text(2))
    rows, file = all_of(path)
    assert [(one.line, one.custom_id) for one in rows] == [(1, "row 0"), (4, "row 1"), (5, None), (6, "row 2")]
    assert sum(one.size for one in rows) + file.passed_bytes == path.stat().st_size
    for one in (rows[0], rows[1], rows[3]):
        assert isinstance(one, Row)
        body = b"".join(one.parts)
        one.parts.clear()
        file.refill(one)
        assert b"".join(one.parts) == body and json.loads(body) == {"prompt": "a"}


def test_rows_with_an_answer_are_passed_over(tmp_path: Path) -> None:
    """Once: the same id again is a mistake, answered or not."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(text(number) for number in (0, 1, 2, 1, 0)))
    rows, file = all_of(path, {digest_of("row 1"), digest_of("row 7")})
    assert [one.line for one in rows if isinstance(one, Row)] == [1, 3] and file.passed == 1
    assert [(one.line, one.code) for one in rows if isinstance(one, BadRow)] == [
        (4, "duplicate_custom_id"),
        (5, "duplicate_custom_id"),
    ]


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_that_is_too_long_is_not_kept(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "in.jsonl"
    long = text(1, user="x" * 3_000_000)
    path.write_bytes(text(0) + b"\n" + long + b"\n" + text(2) + b"\n" + long + end)
    rows, _ = all_of(path)
    assert [one.line for one in rows if isinstance(one, Row)] == [1, 3]
    bad = [one for one in rows if isinstance(one, BadRow)]
    assert [(one.line, one.size) for one in bad] == [(2, len(long) + 1), (4, len(long) + len(end))]
    assert bad[0].message == "Line 2 is larger than the 1 MB allowed (max_request_mb)."
    assert all_of(path, max_mb=4.0)[0][1].custom_id == "row 1"


def test_many_megabytes_are_not_read_ahead(tmp_path: Path) -> None:
    """Red when a file of large rows is read into memory before they are asked."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(text(number, user="x" * 900_000) for number in range(20)))
    file = InputFile(path, (URL,), set(), 1.0)
    assert 1 <= len(file.next_few()) <= 6


def test_a_torn_line_is_dropped_and_the_rest_stays(tmp_path: Path) -> None:
    """However little of it was written."""
    path = tmp_path / "out.jsonl"
    whole = result_line("row 0", None) + result_line("row 1", None)
    whole = whole.replace(b'"response":null', b'"response":{}')
    torn = result_line("row 2", None)
    for length in (0, 1, 5, len(torn) - 1):
        path.write_bytes(whole + torn[:length])
        answered: set[bytes] = set()
        file = ResultFile(path, answered)
        assert answered == {digest_of("row 0"), digest_of("row 1")}
        file.write(torn)
        file.close()
        assert path.read_bytes() == whole + torn


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("wb", buffering=0) as file, pytest.raises(ConfigError) as refused:
        write_all(file.fileno(), b"a line\n", Path("out.jsonl"))
    assert str(refused.value) == "out.jsonl cannot be written: No space left on device; run the batch again to go on."
