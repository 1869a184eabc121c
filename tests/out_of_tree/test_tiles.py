"""A family with tiles, a global view, learned rows and a tower of its own, through the engine and a server.

Rows and answers must be those of the plain way, which has Pillow, loops over tiles, patches and heads, and plain.py.
"""

import base64
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from clips import make_clip
from engine.harness import Driver, driver, loaded, request_of, sized_driver
from file_patches import decoded
from out_of_tree import plain
from parity.conversations import picture
from parity.subject import TOLERANCE
from server.media import data_url, text_part
from server.running import running
from sightline.encoder.decoding import job
from sightline.engine.executor import local_worker
from sightline.errors import ConfigError
from sightline.models.create import create_checkpoint
from sightline.models.quantise import quantise_tower
from sightline.models.registry import add_family_modules, read_model_spec
from sightline.spec import PatchTowerSpec
from sightline.types import MediaItem, Request
from sightline.worker.profile_run import profile_tower

FAMILY = Path(__file__).with_name("tiles")
ANSWER = 6
# Width and height of a picture, and the canvas for it: tiles down and across.
SIZES = {(96, 64): (1, 1), (640, 320): (1, 2), (300, 700): (2, 1), (800, 700): (2, 2), (1400, 400): (1, 3)}


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    add_family_modules([str(FAMILY)])
    folder = tmp_path_factory.mktemp("out_of_tree") / "tiles"
    create_checkpoint(folder, "tiles-vl", "tiny", dtype=torch.float32)
    return folder


# ---- The plain way


def norm(x: torch.Tensor, weights: plain.Weights) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weights["weight"], weights["bias"], 1e-5)


def linear(x: torch.Tensor, weights: plain.Weights) -> torch.Tensor:
    return x @ weights["weight"].T + weights["bias"]


def plain_block(hidden: torch.Tensor, weights: plain.Weights, heads: int) -> torch.Tensor:
    part = lambda name: plain.part_of(weights, f"{name}.")  # noqa: E731
    q, k, v = linear(norm(hidden, part("norm1")), part("qkv")).chunk(3, 1)
    found = []
    for mine in zip(q.chunk(heads, 1), k.chunk(heads, 1), v.chunk(heads, 1), strict=True):
        scores = mine[0] @ mine[1].T / mine[0].shape[1] ** 0.5
        found.append(scores.softmax(1) @ mine[2])
    hidden = hidden + linear(torch.cat(found, 1), part("proj"))
    inner = F.gelu(linear(norm(hidden, part("norm2")), part("mlp.fc1")), approximate="tanh")
    return hidden + linear(inner, part("mlp.fc2"))


def plain_tile(tile: Image.Image, llm: Any) -> list[list[torch.Tensor]]:
    """Rows of one tile, by line and column: patches row by row, as one reads."""
    spec, image = llm.spec.vision, llm.processor.image
    weights = {name: weight.detach() for name, weight in llm.model.vision.named_parameters()}
    pixels = torch.frombuffer(bytearray(tile.tobytes()), dtype=torch.uint8).view(tile.height, tile.width, 3) / 255
    pixels = ((pixels - torch.tensor(image.mean)) / torch.tensor(image.std)).permute(2, 0, 1)
    size, side, found = spec.patch_size, tile.width // spec.patch_size, []
    for y in range(side):
        for x in range(side):
            patch = pixels[:, y * size : (y + 1) * size, x * size : (x + 1) * size].flatten()
            found.append(linear(patch, plain.part_of(weights, "patch_embed.")) + weights["positions"][y * side + x])
    hidden = torch.stack(found)
    for number in range(spec.depth):
        hidden = plain_block(hidden, plain.part_of(weights, f"blocks.{number}."), spec.num_heads)
    lines = []
    for y in range(0, side, 2):
        joined = [torch.cat([hidden[(y + dy) * side + x + dx] for dy in (0, 1) for dx in (0, 1)]) for x in range(0, side, 2)]
        normed = norm(torch.stack(joined), plain.part_of(weights, "norm."))
        lines.append(list(linear(F.gelu(linear(normed, plain.part_of(weights, "fc1."))), plain.part_of(weights, "fc2."))))
    return lines


_rows: dict[tuple[Path, bytes], torch.Tensor] = {}


@torch.inference_mode()
def plain_rows(folder: Path, item: MediaItem) -> torch.Tensor:
    """A picture in one tile, a separator, the picture in the middle of a canvas of tiles; a newline after each line."""
    if (folder, item.key) not in _rows:
        llm = loaded(folder)
        source, side = Image.fromarray(decoded(item)[0]), llm.spec.vision.tile_size
        newline, separator = llm.model.vision.newline.detach(), llm.model.vision.separator.detach()
        whole = plain_tile(source.resize((side, side), Image.Resampling.BICUBIC), llm)
        found = [row for line in whole for row in (*line, newline)] + [separator]
        high, wide = item.views[1].canvas
        scale = min(high / source.height, wide / source.width)
        fitted = source.resize((int(source.width * scale), int(source.height * scale)), Image.Resampling.BICUBIC)
        canvas = Image.new("RGB", (wide, high), tuple(int(255 * value) for value in llm.processor.image.mean))
        canvas.paste(fitted, ((wide - fitted.width) // 2, (high - fitted.height) // 2))
        for top in range(0, high, side):
            beside = [plain_tile(canvas.crop((left, top, left + side, top + side)), llm) for left in range(0, wide, side)]
            for line in zip(*beside, strict=True):
                found += [row for part in line for row in part] + [newline]
        _rows[folder, item.key] = torch.stack(found)
    return _rows[folder, item.key]


_known: dict[tuple[Path, bytes, bytes], list[int]] = {}


@torch.inference_mode()
def expected(folder: Path, request: Request, count: int = ANSWER) -> list[int]:
    key = (folder, request.token_ids.tobytes(), b"".join(item.key for item in request.items))
    if len(_known.get(key, ())) < count:
        llm = loaded(folder)
        weights = {name: weight.detach() for name, weight in llm.model.text.named_parameters()}
        rows = torch.cat([torch.empty(0, llm.spec.text.hidden_size), *(plain_rows(folder, item) for item in request.items)])
        _known[key] = plain.greedy(llm.spec.text, weights, request, rows, count, {}, {})
    return _known[key][:count]


# ---- Rows


@pytest.mark.parametrize("size", SIZES)
def test_the_canvas_that_suits_a_picture(tiles: Path, size: tuple[int, int]) -> None:
    """Red if what the family says of a header is not what reaches the prompt: its views, and a pad token for each row."""
    (item,) = (request := request_of(tiles, picture(*size, 1), "What?")).items
    down, across = SIZES[size]
    side = loaded(tiles).spec.vision.tile_size
    assert item.views[1].canvas == (down * side, across * side) and item.grids == ((1, 4, 4), (down * across, 4, 4))
    assert item.rows == 2 * 3 + 1 + 2 * down * (2 * across + 1) == request.spans[0].count
    assert (request.token_ids == loaded(tiles).spec.tokens.image).sum() == item.rows


@pytest.mark.parametrize("size", SIZES)
def test_rows_are_those_of_a_plain_tower(tiles: Path, size: tuple[int, int]) -> None:
    """Red if a view is resized, padded or cut otherwise, a tile attends to another, or rows stand in another order."""
    image = picture(*size, 2)
    (found,) = loaded(tiles).embed_images([image])
    (item,) = request_of(tiles, image).items
    torch.testing.assert_close(found, plain_rows(tiles, item), atol=TOLERANCE, rtol=0)


# ---- Through the engine


def tokens_of(made: Driver, requests: list[Request]) -> list[list[int]]:
    numbers = [made.add(request, ANSWER) for request in requests]
    made.run()
    assert not made.errors
    return [made.tokens(number) for number in numbers]


@pytest.mark.parametrize("patches", [16, 40, 65_536])
def test_pictures_of_many_sizes_at_once(tiles: Path, patches: int) -> None:
    """Encoded together, or tile by tile. Red if items of one encode take each other's rows, pieces come out of order, or one
    has more patches than the tower may take at once."""
    pictures = [picture(*size, number) for number, size in enumerate(SIZES)]
    requests = [request_of(tiles, "Which? ", *pictures), *(request_of(tiles, one, "This?") for one in pictures[1:])]
    made = driver(tiles, max_patches_per_step=patches, lookahead_patches=0)
    encodes, sizes = local_worker(made.engine.executor).encodes, []
    run = encodes._run_piece
    encodes._run_piece = lambda parts, grids: sizes.append(sum(map(len, parts))) or run(parts, grids)  # type: ignore
    assert tokens_of(made, requests) == [expected(tiles, request) for request in requests]
    assert made.engine.counts.encoded == len(pictures)
    assert max(sizes) <= patches and sum(sizes) == 16 * sum(1 + down * across for down, across in SIZES.values())


@pytest.mark.parametrize("cheap", [48, 0], ids=["in a thread", "in a helper process"])
def test_files_are_decoded_beside_the_engine(tiles: Path, cheap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a helper process, which shrinks what has one view, shrinks a picture of which two are made."""
    monkeypatch.setattr(job, "CHEAP_MEGAPIXELS", cheap)
    buffer = io.BytesIO()
    picture(1400, 1000, 5).save(buffer, "JPEG", quality=90)
    request = request_of(tiles, buffer.getvalue(), "What?")
    made = driver(tiles, threads=True)
    assert tokens_of(made, [request]) == [expected(tiles, request)]
    made.engine.close()


def test_chunks_that_end_at_every_offset(tiles: Path) -> None:
    """A chunk ends inside lines, at newlines and at the separator. Red if rows of an arranged item are counted otherwise than
    tokens."""
    request = request_of(tiles, "ab", picture(640, 320, 3), "c")
    for size in range(1, len(request) + 1):
        assert tokens_of(driver(tiles, max_num_batched_tokens=size), [request]) == [expected(tiles, request)], size


def test_prefix_hits_that_end_inside_a_picture(tiles: Path) -> None:
    """Red if page keys ignore which row stands where, or rows after the hit are not made again."""
    image = picture(640, 320, 4)
    first, second = request_of(tiles, "abc", image, "one"), request_of(tiles, "abc", image, "two, and more")
    (span,) = first.spans
    end = span.start + span.count
    inside = [size for size in range(2, 20) if span.start < (end + 1) // size * size < end]  # the end mark is equal too
    assert inside
    for size in inside:
        made = driver(tiles, page_size=size)
        assert tokens_of(made, [first]) == [expected(tiles, first)]
        made.engine.schedule.embeddings.clear()
        number = made.add(second, ANSWER)
        made.run()
        assert made.tokens(number) == expected(tiles, second)
        assert span.start < made.completions[number, 0].cached_tokens < end and made.engine.counts.encoded == 2


def test_preemption(tiles: Path) -> None:
    """Pages for little more than one of four requests: they take turns. Red if one that comes back takes other rows."""
    requests = [request_of(tiles, word, picture(640, 320, seed), "?") for seed, word in enumerate(("a", "bb", "ccc", "dddd"))]
    longest = max(len(request) for request in requests)
    made = sized_driver(tiles, tokens=longest + 40, rows=64, page_size=2)
    numbers = [made.add(request, 24) for request in requests]
    made.run()
    assert made.engine.schedule.preemptions > 0
    assert [made.tokens(number) for number in numbers] == [expected(tiles, request, 24) for request in requests]


# ---- Everything else that a tower meets


def test_the_memory_profile_runs_its_tower(tiles: Path) -> None:
    """Red if the profile makes up grids that this tower does not take, or fewer patches than there may be."""
    model = loaded(tiles).model
    rows = profile_tower(model, 100)
    assert rows.shape == (7 * 4, model.spec.vision.embedding_width)  # of whole tiles


def test_its_blocks_can_be_quantised(tiles: Path) -> None:
    """Red if only the shared tower's layers are found."""
    tower = loaded(tiles).model.vision.__class__(loaded(tiles).spec.vision)
    for parameter in tower.parameters():
        torch.nn.init.normal_(parameter)
    quantise_tower(tower.requires_grad_(False))
    assert tower.blocks[0].qkv.is_fp8 and tower.blocks[1].mlp.fc2.is_fp8 and not tower.fc1.is_fp8


def test_what_is_for_the_shared_tower_is_refused(tiles: Path) -> None:
    """Red if a benchmark of the shared tower fails without a sentence, or graphs are promised of a tower that has none."""
    spec = read_model_spec(tiles)
    assert not isinstance(spec.vision, PatchTowerSpec)
    with pytest.raises(ConfigError, match="The family tiles-vl has a tower of its own"):
        _ = spec.patch_tower
    with pytest.raises(ConfigError, match="tower_graphs is on, but graphs need"):
        driver(tiles, tower_graphs=True)


def sightline(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "sightline.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_checkpoint_from_the_command_line(tmp_path: Path) -> None:
    """Red if `model new` or `model info` knows only towers of the package."""
    folder, image = tmp_path / "model", tmp_path / "image.png"
    picture(640, 320, 6).save(image)
    assert "Wrote tiles-vl tiny" in sightline("model", "new", folder, "--family", "tiles-vl", "--family-module", FAMILY)
    assert "2 blocks of 64, tiles of 384 pixels" in sightline("model", "info", folder, "--family-module", FAMILY)
    options = ("--model", folder, "--family-module", FAMILY, "--image", image, "--max-tokens", "4", "--timings")
    answer = sightline("ask", "What?", *options)
    assert "4 out" in answer and "encode" in answer


# ---- Through a server


def test_through_a_server(tiles: Path, tmp_path: Path) -> None:
    """Red if a process of the server does not find the family, its answers over HTTP differ, or a video is not refused by the
    model's name."""
    buffer = io.BytesIO()
    picture(640, 320, 7).save(buffer, "PNG")
    request = request_of(tiles, buffer.getvalue(), "What is it?")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, text_part("What is it?")]
    flags = ("--model", str(tiles), "--family-module", str(FAMILY), "--max-model-len", "2048", "--dtype", "float32")
    more = ("--kv-cache-gb", "0.1", "--embedding-cache-gb", "0.05", "--served-model-name", "sightline-embedded")
    with running(tmp_path, *flags, *more) as server:
        for _ in range(2):  # the second from the prefix cache
            found = server.chat(content, max_tokens=ANSWER, extra_body={"ignore_eos": True})
            assert found.choices[0].message.content == loaded(tiles).tokenizer.decode(expected(tiles, request))
            assert found.usage.prompt_tokens == len(request)
        assert found.usage.prompt_tokens_details.cached_tokens > request.spans[0].start + request.spans[0].count
        video = {"type": "video_url", "video_url": {"url": data_url(make_clip(8), "video/x-msvideo")}}
        with pytest.raises(openai.BadRequestError, match=r"The model \S+/tiles takes no videos, and the prompt has 1\."):
            server.chat([video, text_part("What moves?")])
