"""Trains the embedded model: `python training/train.py --folder DIR --minutes 8 --out DIR`.

The language loss on answers, beside it a reading loss (CTC) on the tower's patches where a picture is one line of text, which
wakes the tower up; a curriculum from single large glyphs to full difficulty; easy skills from the start. A run that does not
move is to be stopped: see the log, one JSON line every few seconds.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers

from batches import IGNORED, MERGE, PATCH, TEMPORAL, Batch, Feed, batches
from fast_forward import Layout, hidden_states

READING = 97  # CTC classes: blank, 95 printable ASCII characters, any other
SKILLS = {
    "sign": 6.0, "phone": 2.0, "colour": 1.0, "shape": 1.0, "count": 1.0, "locate": 1.0, "chart": 1.0, "two_images": 1.5,
    "video": 1.0,
}  # fmt: skip


def patches_of(pixels: torch.Tensor, video: bool) -> torch.Tensor:
    """uint8 [batch, frames, height, width, 3] -> [batch * groups, patches, 3 * 2 * 16 * 16] in merge order, normalised."""
    batch, frames, height, width, _ = pixels.shape
    if video:
        groups = pixels.view(batch * frames // TEMPORAL, TEMPORAL, height, width, 3)
    else:
        groups = pixels.view(batch * frames, 1, height, width, 3).expand(-1, TEMPORAL, -1, -1, -1)
    x = groups.permute(0, 4, 1, 2, 3).float().div(127.5).sub(1.0)  # [groups, 3, time, height, width]
    rows, columns = height // (PATCH * MERGE), width // (PATCH * MERGE)
    x = x.reshape(x.shape[0], 3, TEMPORAL, rows, MERGE, PATCH, columns, MERGE, PATCH)
    return x.permute(0, 3, 6, 4, 7, 1, 2, 5, 8).reshape(x.shape[0], rows * columns * MERGE**2, -1)


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


def reading_loss(head: ReadingHead, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
    steps = head(hidden, batch.grid)
    targets = [[ord(c) - 31 if 32 <= ord(c) < 127 else READING - 1 for c in text] for text in batch.texts]
    lengths = torch.tensor([len(t) for t in targets])
    flat = torch.tensor([c for t in targets for c in t])
    taken = torch.full((len(targets),), steps.shape[0])
    return F.ctc_loss(steps, flat.to(steps.device), taken, lengths, zero_infinity=True)


def losses(
    model: Any, head: ReadingHead, batch: Batch, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """(language loss, reading loss, share of answer tokens that are right)"""
    pixels = torch.from_numpy(batch.pixels).to(device, non_blocking=True)
    layout = Layout(batch.grid, batch.items, batch.spans)
    ids = torch.from_numpy(batch.token_ids).to(device, non_blocking=True)
    positions = torch.from_numpy(batch.positions).to(device, non_blocking=True)
    # A token is predicted at the place before it. Places are found on the host: the head runs on answers alone.
    places = np.flatnonzero(batch.labels[:, 1:] != IGNORED)
    row, before = np.divmod(places, batch.labels.shape[1] - 1)
    at = torch.from_numpy(row * batch.labels.shape[1] + before).to(device, non_blocking=True)
    wanted = torch.from_numpy(batch.labels[row, before + 1]).to(device, non_blocking=True)
    with torch.autocast(device.type, torch.bfloat16):
        states, hidden = hidden_states(model, patches_of(pixels, batch.skill == "video"), ids, positions, layout)
        logits = model.lm_head(states.flatten(0, 1)[at])
        language = F.cross_entropy(logits.float(), wanted)
        reading = reading_loss(head, hidden, batch) if any(batch.texts) else None
    with torch.no_grad():
        right = (logits.argmax(-1) == wanted).float().mean()
    return language, reading, right


@torch.no_grad()
def exact(model: Any, batch: Batch, tokenizer: Any, end: int, device: torch.device, most: int = 24) -> int:
    """How many first answers are exactly right, greedily."""
    pixels = patches_of(torch.from_numpy(batch.pixels).to(device), batch.skill == "video")
    layout = Layout(batch.grid, batch.items, batch.spans)
    ids = torch.from_numpy(batch.token_ids).to(device)
    ids = F.pad(ids, (0, max(0, max(batch.prompts) + most - ids.shape[1])), value=end)
    step = torch.arange(ids.shape[1], device=device) - batch.positions.shape[1]
    tail = torch.from_numpy(batch.positions[:, -1:]).to(device) + 1 + step[step >= 0]
    positions = torch.cat((torch.from_numpy(batch.positions).to(device), tail.expand(3, -1)), 1)[:, : ids.shape[1]]
    at = torch.tensor(batch.prompts, device=device)
    rows = torch.arange(len(ids), device=device)
    made: list[torch.Tensor] = []
    for _ in range(most):
        with torch.autocast(device.type, torch.bfloat16):
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
    import shutil

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
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--per-step", type=int, default=3, help="batches of different layouts per optimiser step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--ramp", type=float, default=0.4, help="share of the time until full difficulty")
    parser.add_argument("--start-level", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    train(arguments)


def train(a: argparse.Namespace) -> None:
    device = torch.device(a.device)
    torch.manual_seed(a.seed)
    feed = Feed(a.folder, a.workers, a.batch, a.seed * 1_000_000_007, SKILLS, a.start_level)
    weights = list(a.folder.glob("*.safetensors"))
    cls = transformers.Qwen3VLForConditionalGeneration
    config = transformers.Qwen3VLConfig.from_pretrained(a.folder)
    model = cls.from_pretrained(a.folder, dtype=torch.float32) if weights else cls(config)
    model.to(device).train()
    head = ReadingHead(config.vision_config.hidden_size).to(device)
    parameters = [*model.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=a.lr, betas=(0.9, 0.95), weight_decay=0.03, fused=device.type == "cuda")
    a.out.parent.mkdir(parents=True, exist_ok=True)
    log = (a.out.parent / "train.jsonl").open("a")
    start, step, samples, last = time.time(), 0, 0, time.time()
    running: dict[str, float] = {}
    while (used := (time.time() - start) / 60) < a.minutes:
        share = used / a.minutes
        feed.level.value = min(1.0, a.start_level + (1 - a.start_level) * share / a.ramp)
        rate = a.lr * min(1.0, (step + 1) / a.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        for _ in range(a.per_step):
            batch = feed.next()
            language, reading, right = losses(model, head, batch, device)
            total = language if reading is None else language + 0.5 * reading
            (total / a.per_step).backward()
            samples += len(batch.answers)
            if step % 10 == 0:  # reading a number waits for the device
                values = {batch.skill: language.detach(), f"{batch.skill}_right": right}
                values |= {"ctc": reading.detach()} if reading is not None else {}
                for name, value in values.items():
                    running[name] = 0.8 * running.get(name, float(value)) + 0.2 * float(value)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        if time.time() - last > 10:
            last = time.time()
            line = {"minutes": round(used, 2), "step": step, "samples": samples, "level": round(feed.level.value, 2)}
            line |= {"lr": round(rate, 6), "waited": feed.waited, **{k: round(v, 3) for k, v in sorted(running.items())}}
            print(json.dumps(line), flush=True)
            log.write(json.dumps(line) + "\n")
            log.flush()
    feed.close()
    save(model, a.folder, a.out)
    report(model.eval(), a, device, log)


def report(model: Any, a: argparse.Namespace, device: torch.device, log: Any) -> None:
    """Exact match on held-out examples, skill by skill."""
    from sightline.prompt.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(a.folder)
    end = tokenizer.id_of("<|im_end|>")
    result = {}
    for skill in SKILLS:
        source = batches(a.folder, "heldout", 32, 10_000_000, 1, 1.0, {skill: 1.0})
        found = [exact(model, next(source), tokenizer, end, device) for _ in range(4)]
        result[skill] = sum(found) / 128
    print(json.dumps({"heldout": result}), flush=True)
    log.write(json.dumps({"heldout": result}) + "\n")


if __name__ == "__main__":
    main()
