"""Trains the embedded model: `python training/train.py --folder DIR --minutes 18 --out DIR`.

The language loss on answers, beside it a reading loss (CTC) on the tower's patches where a picture is one line of text, which
wakes the tower up; a curriculum from single large glyphs to full difficulty; easy skills from the start. A step is a few
batches of different layouts; each layout's forward and backward pass is captured in a graph when it is first needed. A run that
does not move is to be stopped: see the log, one JSON line every few seconds.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers

from augment import augment
from batches import IGNORED, MERGE, PATCH, TEMPORAL, Batch, BatchLayout, batches
from ctc import ctc_loss
from fast_forward import Layout, hidden_states
from feed import BLOCK, READING, Drawn, Feed, Ring
from optimiser import Optimiser

SKILLS = {
    "sign": 6.0, "phone": 2.0, "colour": 1.5, "shape": 1.5, "count": 1.5, "locate": 1.0, "chart": 1.0, "two_images": 2.0,
    "video": 1.5,
}  # fmt: skip
READING_WEIGHT = 0.5


def patches_of(x: torch.Tensor, video: bool) -> torch.Tensor:
    """[batch, frames, 3, height, width] -> [batch * groups, patches, 3 * 2 * 16 * 16] in merge order."""
    batch, frames, _, height, width = x.shape
    if video:
        x = x.view(batch * frames // TEMPORAL, TEMPORAL, 3, height, width)
    else:
        x = x.view(batch * frames, 1, 3, height, width).expand(-1, TEMPORAL, -1, -1, -1)
    rows, columns = height // (PATCH * MERGE), width // (PATCH * MERGE)
    x = x.reshape(x.shape[0], TEMPORAL, 3, rows, MERGE, PATCH, columns, MERGE, PATCH)
    return x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(x.shape[0], rows * columns * MERGE**2, -1)


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 [batch, frames, height, width, 3] -> float [batch, frames, 3, height, width], as the processor does."""
    return pixels.permute(0, 1, 4, 2, 3).float().div(127.5).sub(1.0)


class ReadingHead(torch.nn.Module):
    """Characters from columns of patches, two steps per column. Used in training only."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.out = torch.nn.Linear(size, 2 * READING)

    def forward(self, hidden: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """[samples, patches, size] in merge order -> log-probabilities [steps, samples, READING]"""
        rows, columns = grid[1] // MERGE, grid[2] // MERGE
        x = hidden.view(len(hidden), rows, columns, MERGE, MERGE, -1).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(len(hidden), rows * MERGE, columns * MERGE, -1).mean(1)  # [samples, columns in patches, size]
        steps = self.out(self.norm(x)).reshape(len(hidden), -1, READING)
        return steps.float().log_softmax(-1).transpose(0, 1)


@dataclass(frozen=True)
class Losses:
    language: torch.Tensor
    reading: torch.Tensor  # 0 where nothing is read
    right: torch.Tensor  # share of answer tokens that are right


def losses(
    model: Any, head: ReadingHead | None, layout: BatchLayout, positions: torch.Tensor, drawn: Drawn, x: torch.Tensor
) -> Losses:
    """x [batch, frames, 3, height, width]: the pictures, normalised and perhaps augmented. No head, no reading loss."""
    place = Layout(layout.grid, layout.items, layout.spans)
    states, hidden = hidden_states(model, patches_of(x, layout.video), drawn.ids, positions, place)
    states = states.gather(1, drawn.at[:, :, None].expand(-1, -1, states.shape[-1]))  # the head runs on answers alone
    logits, wanted = model.lm_head(states).flatten(0, 1).float(), drawn.wanted.flatten()
    language = F.cross_entropy(logits, wanted, ignore_index=IGNORED)
    reading = logits.new_zeros(())
    if head is not None:
        reading = ctc_loss(head(hidden, layout.grid), drawn.targets, drawn.lengths)
    with torch.no_grad():
        right = (logits.argmax(-1) == wanted).sum() / (wanted != IGNORED).sum()
    return Losses(language, reading, right)


class Learner:
    """Forward and backward passes over batches of one layout, captured once and replayed."""

    def __init__(self, model: Any, head: ReadingHead | None, ring: Ring, size: int, optimiser: Optimiser) -> None:
        self._model, self._head, self._ring, self._size, self._optimiser = model, head, ring, size, optimiser
        self.sums = torch.zeros(4, device=ring.positions.device)  # language, reading, right, how many batches
        self._graph: Any = None

    def learn(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._pass()

    def capture(self, pool: Any) -> None:
        """Runs the pass a few times first, as captures need; their gradients and sums are thrown away."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._pass()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._pass()
        self._optimiser.gradient.zero_()
        self.sums.zero_()

    def _pass(self) -> None:
        drawn = self._ring.draw(self._size)
        layout = self._ring.layout
        x = augment(drawn.pixels, layout.skill)
        found = losses(self._model, self._head, layout, self._ring.positions, drawn, x)
        (found.language + READING_WEIGHT * found.reading).backward()
        self._optimiser.collect()
        self.sums.add_(torch.stack((found.language, found.reading, found.right, torch.ones_like(found.right))).detach())


def in_turn(weights: dict[str, float]) -> Iterator[str]:
    """Names as often as their weights say, spread as evenly as can be."""
    credit = dict.fromkeys(weights, 0.0)
    total = sum(weights.values())
    while True:
        for name, weight in weights.items():
            credit[name] += weight / total
        name = max(credit, key=lambda one: credit[one])
        credit[name] -= 1
        yield name


@torch.no_grad()
def exact(model: Any, batch: Batch, tokenizer: Any, end: int, device: torch.device, most: int = 24) -> int:
    """How many first answers are exactly right, greedily."""
    place = batch.layout
    pixels = patches_of(normalised(torch.from_numpy(batch.pixels).to(device)), place.video)
    layout = Layout(place.grid, place.items, place.spans)
    ids = torch.from_numpy(batch.token_ids).to(device)
    ids = F.pad(ids, (0, max(0, max(batch.prompts) + most - ids.shape[1])), value=end)
    step = torch.arange(ids.shape[1], device=device) - batch.positions.shape[1]
    tail = torch.from_numpy(batch.positions[:, -1:]).to(device) + 1 + step[step >= 0]
    positions = torch.cat((torch.from_numpy(batch.positions).to(device), tail.expand(3, -1)), 1)[:, : ids.shape[1]]
    at = torch.tensor(batch.prompts, device=device)
    rows = torch.arange(len(ids), device=device)
    made: list[torch.Tensor] = []
    for _ in range(most):
        states, _ = hidden_states(model, pixels, ids, positions, layout)
        token = model.lm_head(states[rows, at - 1]).argmax(-1)
        ids[rows, at] = token
        at = at + 1
        made.append(token)
    count = 0
    for row, answer in zip(torch.stack(made, 1).tolist(), batch.answers, strict=True):
        row = row[: row.index(end)] if end in row else row
        count += tokenizer.decode(row).strip() == answer
    return count


def save(model: Any, folder: Path, out: Path) -> None:
    """bf16 weights in files below 16 MB, beside the tokenizer, template and processor files of the folder."""
    out.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.suffix in (".json", ".jinja") and "safetensors" not in file.name:
            shutil.copy(file, out)
    copy = transformers.Qwen3VLForConditionalGeneration(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(out, max_shard_size="15MB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="config, tokenizer, template; weights to start from if any")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=18.0)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--per-step", type=int, default=3, help="batches of different layouts per optimiser step")
    parser.add_argument("--rate", type=float, default=0.015, help="highest learning rate, of Muon; AdamW takes a tenth")
    parser.add_argument("--warmup", type=int, default=300, help="steps")
    parser.add_argument("--ramp", type=float, default=0.2, help="share of the time until full difficulty")
    parser.add_argument("--reading", type=float, default=0.6, help="share of the time in which the reading loss counts")
    parser.add_argument("--start-level", type=float, default=0.0)
    parser.add_argument("--save-every", type=float, default=4.0, help="minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    train(parser.parse_args())


def load(folder: Path, device: torch.device) -> Any:
    cls = transformers.Qwen3VLForConditionalGeneration
    if list(folder.glob("*.safetensors")):
        model = cls.from_pretrained(folder, dtype=torch.float32)
    else:
        model = cls(transformers.Qwen3VLConfig.from_pretrained(folder))
    return model.to(device).train()


def train(a: argparse.Namespace) -> None:
    device = torch.device(a.device)
    torch.manual_seed(a.seed)
    feed = Feed(a.folder, a.workers, a.seed * 1_000_000_007, SKILLS, a.start_level)
    model = load(a.folder, device)
    head = ReadingHead(model.config.vision_config.hidden_size).to(device)
    named = [*model.named_parameters(), *((f"reading.{name}", one) for name, one in head.named_parameters())]
    if device.type == "cuda":
        feed.pin()
    optimiser = Optimiser(named, torch.bfloat16 if device.type == "cuda" else torch.float32)
    learners: dict[tuple[BatchLayout, bool], Learner] = {}
    update = update_of(optimiser, a.per_step, device)
    pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
    a.out.parent.mkdir(parents=True, exist_ok=True)
    log = Log(a.out.parent / "train.jsonl", learners)
    turns, generator = in_turn(SKILLS), torch.Generator().manual_seed(a.seed)
    while len(ready := {ring.layout.skill for ring in feed.rings.values() if ring.received >= 2 * BLOCK}) < len(SKILLS):
        feed.take_in(device, wait=True)
    log.write({"ready": sorted(ready)})
    start, step, saved = time.time(), 0, 0.0
    while (used := (time.time() - start) / 60) < a.minutes:
        share = used / a.minutes
        feed.level.value = min(1.0, a.start_level + (1 - a.start_level) * share / a.ramp)
        optimiser.rate.fill_(a.rate * min(1.0, (step + 1) / a.warmup) * (1 - share))
        feed.take_in(device)
        chosen = []
        while len(chosen) < a.per_step:
            ring = choose_ring(feed, next(turns), generator)
            reads = ring.layout.skill in ("sign", "phone") and share < a.reading
            if (ring.layout, reads) not in learners:
                learners[ring.layout, reads] = Learner(model, head if reads else None, ring, a.batch, optimiser)
                if pool is not None:
                    learners[ring.layout, reads].capture(pool)
            chosen.append(learners[ring.layout, reads])
        for learner in chosen:
            learner.learn()
        update()
        step += 1
        if step % 20 == 0 and device.type == "cuda":
            torch.cuda.synchronize()  # the host must not run ahead of the clock that sets rate and level
        if log.due():
            log.line(minutes=round(used, 2), step=step, drawn=feed.drawn, used=step * a.per_step * a.batch,
                     level=round(feed.level.value, 2), rate=float(optimiser.rate))  # fmt: skip
        if used - saved > a.save_every:
            saved = used
            save(model, a.folder, a.out)
    feed.close()
    save(model, a.folder, a.out)
    report(model.eval(), a, device, log)


def update_of(optimiser: Optimiser, batches: int, device: torch.device) -> Callable[[], None]:
    """The optimiser's step, as a graph on a GPU."""
    if device.type != "cuda":
        return lambda: optimiser.step(batches)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimiser.step(batches)  # gradients and rate are 0
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimiser.step(batches)
    return graph.replay


def choose_ring(feed: Feed, skill: str, generator: torch.Generator) -> Ring:
    """A layout of the skill, as often as the generator makes it."""
    rings = [ring for ring in feed.rings.values() if ring.layout.skill == skill and ring.received >= 2 * BLOCK]
    weights = torch.tensor([float(ring.received) for ring in rings])
    return rings[int(torch.multinomial(weights, 1, generator=generator))]


class Log:
    """A JSON line now and then: what the learners' sums have become since the last one."""

    def __init__(self, path: Path, learners: dict[tuple[BatchLayout, bool], Learner]) -> None:
        self._file, self._learners, self._last = path.open("a"), learners, time.time()

    def due(self) -> bool:
        return time.time() - self._last > 10

    def line(self, **known: Any) -> None:
        self._last = time.time()
        sums: dict[str, torch.Tensor] = {}
        for (layout, _), learner in self._learners.items():
            sums[layout.skill] = sums.get(layout.skill, 0) + learner.sums
            if layout.skill in ("sign", "phone") and float(learner.sums[1]):
                sums["ctc"] = sums.get("ctc", 0) + learner.sums
            learner.sums.zero_()
        for name, one in sorted(sums.items()):
            language, reading, right, count = one.tolist()
            if count and name == "ctc":
                known[name] = round(reading / count, 3)
            elif count:
                known |= {name: round(language / count, 3), f"{name}_right": round(right / count, 3)}
        self.write(known)

    def write(self, known: dict[str, Any]) -> None:
        print(json.dumps(known), flush=True)
        self._file.write(json.dumps(known) + "\n")
        self._file.flush()


def report(model: Any, a: argparse.Namespace, device: torch.device, log: Log) -> None:
    """Exact match on held-out examples, skill by skill."""
    from sightline.prompt.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(a.folder)
    end = tokenizer.id_of("<|im_end|>")
    result = {}
    for skill in SKILLS:
        source = batches(a.folder, "heldout", 32, 10_000_000, 1, 1.0, {skill: 1.0})
        found = [exact(model, next(source), tokenizer, end, device) for _ in range(6)]
        result[skill] = round(sum(found) / 192, 3)
    log.write({"heldout": result})


if __name__ == "__main__":
    main()
