"""transformers as the judge of Step3-VL: its tower of the same architecture and Qwen3's decoder, joined; Pillow for pixels.

transformers has no class for the whole model. Step3p7VisionModel is the same tower in another layout, and transformers' own
conversion brings the checkpoint's tensors into it, but for one thing: it turns the first half of a head's pairs by rows of
patches, where the model's own code does so by columns (test_tower.py compares with that). Step3p7Processor writes the same
prompts.
"""

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import torchvision_on_cpu

torchvision_on_cpu.declare_operators()

import transformers  # noqa: E402
from transformers import Qwen3ForCausalLM, Step3p7ImageProcessor, Step3p7Processor, Step3p7VisionModel  # noqa: E402

transformers.logging.set_verbosity_error()
torch.backends.cudnn.allow_tf32 = False  # of convolutions

PAD = "<im_patch>"
TEXT, TOWER, PROJECTOR = "model.language_model.", "vision_model.", "vit_large_projector.weight"


class Oracle:
    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.numbers = json.loads((folder / "preprocessor_config.json").read_text())
        self.device, self.dtype = device, dtype
        stored = load_file(folder / "model.safetensors")
        self.projector = stored[PROJECTOR].to(device, dtype)
        with tempfile.TemporaryDirectory() as place:
            tower = {name.removeprefix(TOWER): weight for name, weight in stored.items() if name.startswith(TOWER)}
            heads = self.config["vision_config"]["heads"]
            tower |= {name: rows_first(weight, heads) for name, weight in tower.items() if "attn.in_proj" in name}
            self.tower = loaded(Step3p7VisionModel, Path(place), tower, self.config["vision_config"], "step3p5_vision", dtype)
        with tempfile.TemporaryDirectory() as place:
            text = {name.replace(TEXT, "model."): weight for name, weight in stored.items() if name.startswith((TEXT, "lm_"))}
            self.text = loaded(Qwen3ForCausalLM, Path(place), text, self.config["text_config"], "qwen3", dtype)
        self.tower.to(device)
        self.text.to(device)
        self.processor = Step3p7Processor(
            image_processor=self.image_processor(),
            tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder),
            chat_template=(folder / "chat_template.jinja").read_text(),
        )

    def image_processor(self) -> Any:
        names = ("size", "patch_size", "max_image_size")
        return Step3p7ImageProcessor(**{name: self.numbers[name] for name in names})

    def ids(self, messages: list[dict[str, Any]]) -> list[int]:
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        found = self.processor(text=[text], images=pictures(messages) or None, return_tensors="pt")
        return list(found["input_ids"][0].tolist())

    @torch.inference_mode()
    def rows(self, picture: Image.Image) -> torch.Tensor:
        """Of the windows, then of the whole picture, [rows, hidden]; each view by itself."""
        found = []
        for view in views(picture, self.numbers):
            pixels = normalised(view, self.numbers)[None].to(self.device, self.dtype)
            found.append(self.tower(pixels).last_hidden_state[0] @ self.projector.T)
        return torch.cat(found)

    def all_rows(self, messages: list[dict[str, Any]]) -> torch.Tensor | None:
        found = [self.rows(picture) for picture in pictures(messages)]
        return torch.cat(found) if found else None

    @torch.inference_mode()
    def logits(self, ids: list[int], rows: torch.Tensor | None, cache: Any = None, more: tuple[int, ...] = ()) -> torch.Tensor:
        """After each token, [tokens, vocab]; `rows` stand where the pads of `ids` are, `more` is behind them."""
        tokens = torch.tensor([*ids, *more], device=self.device)
        embeds = self.text.get_input_embeddings()(tokens).clone()
        if rows is not None:
            embeds[: len(ids)][tokens[: len(ids)] == self.config["image_token_id"]] = rows.to(embeds.dtype)
        found: torch.Tensor = self.text(inputs_embeds=embeds[None], past_key_values=cache, use_cache=cache is not None).logits[
            0
        ]
        return found

    def greedy(self, ids: list[int], rows: torch.Tensor | None, count: int) -> list[int]:
        cache = transformers.DynamicCache(config=self.text.config)
        tokens = [int(self.logits(ids, rows, cache)[-1].argmax())]
        while len(tokens) < count:
            tokens.append(int(self.logits(tokens[-1:], None, cache)[-1].argmax()))
        return tokens


def rows_first(in_proj: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries and keys with the two halves of each head exchanged: those that columns of patches turn come last."""
    q, k, v = in_proj.chunk(3)
    q, k = (rows.unflatten(0, (heads, 2, -1)).flip(1).flatten(0, 2) for rows in (q, k))
    return torch.cat((q, k, v))


def loaded(
    kind: Any, place: Path, weights: dict[str, torch.Tensor], config: dict[str, Any], name: str, dtype: torch.dtype
) -> Any:
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    (place / "config.json").write_text(json.dumps({**config, "model_type": name}))
    model, said = kind.from_pretrained(place, dtype=dtype, output_loading_info=True)
    assert not any(said[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), said
    return model.eval()


@lru_cache(maxsize=4)
def oracle(folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Oracle:
    return Oracle(folder, device, dtype)


def pictures(messages: list[dict[str, Any]]) -> list[Image.Image]:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [part["image"] for part in parts if part["type"] == "image"]


# ---- Pictures by Pillow alone, step by step


def views(picture: Image.Image, numbers: dict[str, Any]) -> list[Image.Image]:
    """The windows row by row, then the whole picture, as the model's own code cuts them; sizes in pixels."""
    whole, window, longest = numbers["size"]["height"], numbers["patch_size"], numbers["max_image_size"]
    picture = squared(picture)
    if max(picture.size) > longest:
        picture = bilinear(picture, *(int(side * (longest / max(picture.size))) for side in picture.size))
    side = window_side(picture.size, whole, window)
    found = []
    if side:
        laid = bilinear(picture, *(whole_windows(length, side) for length in picture.size))
        for top in range(0, laid.height, side):
            for left in range(0, laid.width, side):
                found.append(bilinear(laid.crop((left, top, left + side, top + side)), window, window))
    return [*found, bilinear(picture, whole, whole)]


def squared(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    if min(width, height) >= 32 or not (width / height > 4 or height / width > 4):
        return picture
    canvas = Image.new("RGB", (max(width, height),) * 2, 0)
    canvas.paste(picture, (0, 0))
    return canvas


def window_side(size: tuple[int, int], whole: int, window: int) -> int:
    short, long = sorted(size)
    if long <= whole:
        return short if long / short > 1.5 else 0
    return min(short, window) if long / short > 4 else window


def whole_windows(length: int, side: int) -> int:
    if length < side:
        return length
    part = length / side - length // side
    return side * (length // side + (1 if part > 0.2 else 0))


def bilinear(picture: Image.Image, width: int, height: int) -> Image.Image:
    return picture.resize((width, height), Image.Resampling.BILINEAR)


def normalised(picture: Image.Image, numbers: dict[str, Any]) -> torch.Tensor:
    """[3, height, width]"""
    values = (np.asarray(picture, dtype=np.float64) / 255).astype(np.float32)
    mean, std = (np.array(numbers[name], np.float32) for name in ("image_mean", "image_std"))
    return torch.from_numpy((values - mean) / std).permute(2, 0, 1)
