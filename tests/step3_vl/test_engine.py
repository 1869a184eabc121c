"""Step3-VL through the engine and a server: whatever the schedule, the answer is that of transformers' parts."""

import base64
import io
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from clips import make_clip
from engine import harness
from engine.harness import Driver, driver, loaded, request_of, sized_driver
from parity.conversations import picture
from server.media import data_url, text_part
from server.running import running
from sightline.encoder.decoding import job
from sightline.engine.executor import local_worker
from sightline.models.create import create_checkpoint
from sightline.types import Request
from sightline.worker.readout import Readout
from step3_vl.conversations import SHAPES, WHOLE, WINDOWS, user
from step3_vl.oracle import oracle

ANSWER = 6


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["step3-vl"]


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Step by step; or launched before the last step is read, as if the device were never done so soon."""
    monkeypatch.setattr(harness, "OVERLAP", request.param)
    monkeypatch.setattr(harness, "ASYNC_ENCODE", request.param)
    if request.param:
        monkeypatch.setattr(Readout, "ready", property(lambda _: False))
    return bool(request.param)


_known: dict[tuple[Path, bytes, bytes], list[int]] = {}


def expected(folder: Path, request: Request, *parts: Any, count: int = ANSWER) -> list[int]:
    """transformers' answer to a user turn of these parts, of which the request was made."""
    key = (folder, request.token_ids.tobytes(), b"".join(item.key for item in request.items))
    if len(_known.get(key, ())) < count:
        messages = [user(*parts)]
        reference = oracle(folder)
        ids = reference.ids(messages)
        assert ids == request.token_ids.tolist()
        _known[key] = reference.greedy(ids, reference.all_rows(messages), count)
    return _known[key][:count]


def tokens_of(made: Driver, requests: list[Request], count: int = ANSWER) -> list[list[int]]:
    numbers = [made.add(request, count) for request in requests]
    made.run()
    assert not made.errors
    return [made.tokens(number) for number in numbers]


def asked(folder: Path, *all_parts: tuple[Any, ...]) -> tuple[list[Request], list[list[int]]]:
    """Requests, and the answers that are right."""
    requests = [request_of(folder, *parts) for parts in all_parts]
    return requests, [expected(folder, request, *parts) for request, parts in zip(requests, all_parts, strict=True)]


@pytest.mark.parametrize("patches", [64, 300, 65_536])
def test_pictures_of_every_shape_at_once(folder: Path, patches: int, overlap: bool) -> None:
    """Encoded together, or a view at a time. Red if items of one encode take each other's rows, or windows and wholes of
    several pictures change places, or one has more patches than the tower may take at once."""
    sizes_of = [size for name, (size, _) in SHAPES.items() if name != "tiny"]  # which the harness' --min-pixels would enlarge
    pictures = [picture(*size, number) for number, size in enumerate(sizes_of)]
    requests, right = asked(folder, ("Which? ", *pictures[:5]), *((one, "This?") for one in pictures))
    made = driver(folder, max_patches_per_step=patches, lookahead_patches=0)
    encodes, sizes = local_worker(made.engine.executor).encodes, []
    run = encodes._run_piece
    encodes._run_piece = lambda parts, grids: sizes.append(sum(map(len, parts))) or run(parts, grids)  # type: ignore
    assert tokens_of(made, requests) == right
    assert made.engine.counts.encoded == len(pictures)
    assert max(sizes) <= max(patches, 12 * 12)


def test_chunks_that_end_at_every_offset(folder: Path, overlap: bool) -> None:
    """Between windows, inside one, at the end of a line of them. Red if rows of the second run are counted from the first."""
    parts = ("ab", picture(170, 230, 3), "c")
    (request,), (right,) = asked(folder, parts)
    assert len(request.items[0].grids) == 2 and len(request.spans) == 5 and len(request) < 80
    for size in range(1, len(request) + 1, 5 if overlap else 1):
        assert tokens_of(driver(folder, max_num_batched_tokens=size), [request]) == [right], size


def test_prefix_hits_that_end_inside_a_picture(folder: Path) -> None:
    """In a window, and in the whole. Red if page keys ignore which row stands where, or rows behind are not made again."""
    image = picture(*WINDOWS, 4)
    (first, second), (right, other) = asked(folder, ("abc", image, "one"), ("abc", image, "two, and more"))
    begin, end = first.spans[0].start, first.spans[-1].start + first.spans[-1].count
    seen = set()
    for size in (2, 3, 5, 11, 16, 23, 30, 41):
        made = driver(folder, page_size=size)
        assert tokens_of(made, [first]) == [right]
        made.engine.schedule.embeddings.clear()  # so that the rows must be made again
        number = made.add(second, ANSWER)
        made.run()
        assert made.tokens(number) == other
        cached = made.completions[number, 0].cached_tokens
        if begin < cached < end:
            assert made.engine.counts.encoded == 2
            seen.add(next((index for index, span in enumerate(first.spans) if cached <= span.start + span.count), -1))
    assert len(seen) >= 3, "hits should end in several runs of the picture"


def test_other_windows_are_no_hit(folder: Path) -> None:
    """A prompt has the same ids up to its second line of windows. Red if pages of one picture are taken for another's."""
    one, another = picture(*WINDOWS, 5), picture(*WINDOWS, 6)
    requests, right = asked(folder, ("abc", one, "?"), ("abc", another, "?"))
    made = driver(folder, page_size=2)
    for request, answer in zip(requests, right, strict=True):
        number = made.add(request, ANSWER)
        made.run()
        assert made.tokens(number) == answer
    assert made.completions[number, 0].cached_tokens <= requests[1].spans[0].start


def test_preemption(folder: Path, overlap: bool) -> None:
    """Pages for little more than one of four requests: they take turns. Red if one that comes back takes other rows."""
    all_parts = [(word, picture(160, 90, seed), "?") for seed, word in enumerate(("a", "bb", "ccc", "dddd"))]
    requests = [request_of(folder, *parts) for parts in all_parts]
    longest = max(len(request) for request in requests)
    made = sized_driver(folder, tokens=longest + 40, rows=64, page_size=2)
    right = [expected(folder, request, *parts, count=24) for request, parts in zip(requests, all_parts, strict=True)]
    assert tokens_of(made, requests, 24) == right
    assert made.engine.schedule.preemptions > 0


@pytest.mark.parametrize("cheap", [48, 0], ids=["in a thread", "in a helper process"])
@pytest.mark.parametrize("size", [WHOLE, (900, 700)])
def test_files_are_decoded_beside_the_engine(
    folder: Path, cheap: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red if a helper process resizes a picture by its own filter, of one view or of two."""
    monkeypatch.setattr(job, "CHEAP_MEGAPIXELS", cheap)
    buffer = io.BytesIO()
    picture(size[0] + 90, size[1] + 70, 5).save(buffer, "PNG")
    request = request_of(folder, buffer.getvalue(), "What?")
    made = driver(folder, threads=True)
    assert tokens_of(made, [request]) == [expected(folder, request, Image.open(buffer), "What?")]
    made.engine.close()


@pytest.mark.slow
def test_through_a_server(tmp_path: Path) -> None:
    """Red if a worker process is told of other views than the engine counted rows for, answers over HTTP differ, or a video is
    not refused by the model's name."""
    folder = tmp_path / "step3"
    create_checkpoint(folder, "step3-vl", "tiny", seed=11)
    buffer = io.BytesIO()
    picture(170, 330, 7).save(buffer, "PNG")
    request = request_of(folder, buffer.getvalue(), "What is it?")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, text_part("What is it?")]
    flags = ("--model", str(folder), "--max-model-len", "2048", "--dtype", "float32", "--kv-cache-gb", "0.1")
    more = ("--embedding-cache-gb", "0.05", "--served-model-name", "sightline-embedded", "--worker-process")
    with running(tmp_path, *flags, *more) as server:
        right = expected(folder, request, Image.open(buffer), "What is it?")
        for _ in range(2):  # the second from the prefix cache
            found = server.chat(content, max_tokens=ANSWER, extra_body={"ignore_eos": True})
            message = found.choices[0].message
            said = (message.content or "") + (getattr(message, "reasoning_content", None) or "")
            assert said == loaded(folder).tokenizer.decode(right)
            assert found.usage.prompt_tokens == len(request)
        assert found.usage.prompt_tokens_details.cached_tokens > request.spans[-1].start
        video = {"type": "video_url", "video_url": {"url": data_url(make_clip(8), "video/x-msvideo")}}
        with pytest.raises(openai.BadRequestError, match=r"The model \S+/step3 takes no videos, and the prompt has 1\."):
            server.chat([video, text_part("What moves?")])
