"""transformers on the weights of a published-style checkpoint, and the plain way to what its processor gives.

transformers' class has other names than the published tensors, and no adapter: W + scale * B A is merged into its weights for
requests with images. Its image processor needs crops of 448 pixels; the plain one here works in any size, and in real size is
compared with it.
"""

import json
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

import torchvision_on_cpu

torchvision_on_cpu.declare_operators()

import transformers  # noqa: E402

from file_patches import decoded  # noqa: E402
from sightline.types import MediaItem, Request  # noqa: E402

transformers.logging.set_verbosity_error()
torch.backends.cudnn.allow_tf32 = False  # its patch embedding is a convolution

_NAMES = {
    "image_embed.img_projection.0": "image_embed.img_projection_up",
    "image_embed.img_projection.2": "image_embed.img_projection_down",
    "image_embed.glb_GN": "image_embed.global_img_feature_extensor",
    "image_embed.sub_GN": "image_embed.sub_img_feature_extensor",
    ".base_layer.weight": ".weight",
}


def their_config(folder: Path) -> Any:
    ours = json.loads((folder / "config.json").read_text())
    taken = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("hidden_act", "max_position_embeddings", "original_max_position_embeddings", "rms_norm_eps", "sliding_window"),
        *("tie_word_embeddings", "pad_token_id", "eos_token_id"),
    )
    rope = {"rope_theta": ours["rope_theta"], "partial_rotary_factor": ours["partial_rotary_factor"], "rope_type": "longrope"}
    rope |= {name: ours["rope_scaling"][name] for name in ("short_factor", "long_factor")}
    rope["original_max_position_embeddings"] = ours["original_max_position_embeddings"]
    crop = ours["embd_layer"]["image_embd_layer"]["crop_size"]
    vision = {**ours["vision_config"], "crop_size": crop, "image_token_id": ours["image_token_id"]}
    sizes = ("hidden_size", "intermediate_size", "nemo_conv_channels", "ext_pw_out_channel", "depthwise_separable_out_channel")
    audio = dict.fromkeys(sizes, 16) | {"num_blocks": 1, "num_attention_heads": 2, "audio_token_id": ours["image_token_id"] + 1}
    return transformers.Phi4MultimodalConfig(
        **{name: ours[name] for name in taken}, rope_parameters=rope, vision_config=vision, audio_config=audio
    )


def their_weights(folder: Path, adapted: bool) -> dict[str, torch.Tensor]:
    """By transformers' names, in float32; with `adapted` the adapter is merged."""
    stored = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    lora = json.loads((folder / "config.json").read_text())["vision_lora"]
    found = {}
    for name, value in stored.items():
        if ".lora_" in name:
            continue
        if adapted and name.endswith(".base_layer.weight"):
            first, second = (stored[name.replace("base_layer", f"lora_{half}.vision")] for half in "BA")
            value = value + lora["lora_alpha"] / lora["r"] * (first @ second)
        for ours, theirs in _NAMES.items():
            name = name.replace(ours, theirs)
        found[name] = value
    return found


class Phi4Oracle:
    def __init__(self, folder: Path, adapted: bool, dtype: torch.dtype) -> None:
        config = their_config(folder)
        # With sdpa, 5.17 takes its vision attention for causal where no patch of any crop is masked.
        config._attn_implementation = "eager"
        self.model: Any = transformers.Phi4MultimodalForCausalLM(config)
        weights = their_weights(folder, adapted)
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        assert not unexpected, unexpected
        # What comes behind the features that are read, the audio, the tied head.
        depth = config.vision_config.num_hidden_layers
        behind = ("audio_embed", f"encoder.layers.{depth - 1}.", "post_layernorm", "img_processor.head")
        tied = ("lm_head",) if config.tie_word_embeddings else ()
        assert all(any(part in name for part in (*behind, *tied)) for name in missing), missing
        self.model.tie_weights()
        self.model = self.model.to(dtype).eval()
        self.dtype = dtype

    @cached_property
    def embed(self) -> Any:
        return self.model.model.embed_tokens_extend.image_embed

    @torch.inference_mode()
    def rows(self, images: "list[Pixels]") -> list[torch.Tensor]:
        """Embedding rows of each image, [rows, hidden]."""
        found = []
        for image in images:
            count = image.num_tokens
            ids = torch.full((1, count), self.model.config.vision_config.image_token_id)
            empty = torch.zeros(1, count, self.model.config.hidden_size, dtype=self.dtype)
            found.append(self.embed(ids, empty, image.pixel_values[None], image.image_sizes[None], image.mask[None])[0])
        return found

    @torch.inference_mode()
    def logits(self, request: Request, images: "list[Pixels]", more: "list[int] | None" = None) -> torch.Tensor:
        """[tokens, vocab] of the request's ids and more, with transformers' own rows of the images in their places."""
        ids = torch.tensor([[*request.token_ids.tolist(), *(more or [])]])
        embeds = self.model.model.embed_tokens(ids)
        places = ids[0] == self.model.config.vision_config.image_token_id
        if images:
            embeds[0, places] = torch.cat(self.rows(images))
        logits: torch.Tensor = self.model(inputs_embeds=embeds).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, request: Request, images: "list[Pixels]", count: int, cached: bool = True) -> list[int]:
        """generate() with all that its processor gives. Not `cached`: every token from a forward pass over the whole sequence.

        Where a sequence passes the original length, 5.17 keeps the keys in its cache although the frequencies are others: it
        looks for the whole prompt where it has the newest token alone. What its forward pass says of the whole is the truth.
        """
        ids = torch.from_numpy(request.token_ids).long()[None]
        own: dict[str, Any] = {}
        if images:
            most = max(len(image.pixel_values) for image in images)
            own = {
                "image_pixel_values": torch.stack([_padded(image.pixel_values, most, 0) for image in images]).to(self.dtype),
                "image_sizes": torch.stack([image.image_sizes for image in images]),
                "image_attention_mask": torch.stack([_padded(image.mask, most, 1) for image in images]),
            }
        out = self.model.generate(
            input_ids=ids,
            **own,
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            eos_token_id=-1,
            use_cache=cached,
        )
        return list(out[0, ids.shape[1] :].tolist())


def _padded(crops: torch.Tensor, most: int, value: float) -> torch.Tensor:
    return torch.cat((crops, crops.new_full((most - len(crops), *crops.shape[1:]), value)))


@lru_cache(maxsize=8)
def oracle(folder: Path, adapted: bool, dtype: torch.dtype = torch.float32) -> Phi4Oracle:
    return Phi4Oracle(folder, adapted, dtype)


# ---- The plain way from a picture to what the model takes


@dataclass
class Pixels:
    """Of one image, as transformers' processor names them."""

    pixel_values: torch.Tensor  # [1 + crops, 3, crop, crop]
    image_sizes: torch.Tensor  # [2]
    mask: torch.Tensor  # [1 + crops, side, side] of 0 and 1

    @property
    def num_tokens(self) -> int:
        """Counted cell by cell: those of the crops, their newlines, the separator, the whole."""
        side = self.mask.shape[1] // 2
        seen = self.mask[1:, ::2, ::2]
        down = int(self.image_sizes[0]) // self.pixel_values.shape[2]
        first_column = seen.unflatten(0, (down, -1))[:, 0, :, 0]
        return int(seen.sum() + first_column.sum()) + 1 + side * (side + 1)


def plain_pixels(picture: Image.Image, crop: int, most: int = 36, patch: int = 14) -> Pixels:
    """Pillow and loops: resize, paste on white, mask, cut."""
    across, down = math.ceil(picture.width / crop), math.ceil(picture.height / crop)
    if across * down > most:
        across, down = _best(picture.width, picture.height, crop, most)
    wide, high = across * crop, down * crop
    scale = min(wide / picture.width, high / picture.height)
    size = (
        (wide, int(picture.height * scale))
        if wide / picture.width < high / picture.height
        else (int(picture.width * scale), high)
    )
    canvas = Image.new("RGB", (wide, high), (255, 255, 255))
    canvas.paste(picture.convert("RGB").resize(size, Image.Resampling.BILINEAR), (0, 0))
    seen = np.ones((high // patch, wide // patch))
    seen[high // patch - (high - size[1]) // patch :] = 0
    seen[:, wide // patch - (wide - size[0]) // patch :] = 0
    values = (torch.from_numpy(np.asarray(canvas).copy()).permute(2, 0, 1) / 255 - 0.5) / 0.5
    whole = torch.nn.functional.interpolate(values[None], size=(crop, crop), mode="bicubic")[0]
    crops, masks = [whole], [np.ones((crop // patch,) * 2)]
    side = crop // patch
    for y in range(down):
        for x in range(across):
            crops.append(values[:, y * crop : (y + 1) * crop, x * crop : (x + 1) * crop])
            masks.append(seen[y * side : (y + 1) * side, x * side : (x + 1) * side])
    return Pixels(torch.stack(crops), torch.tensor([high, wide]), torch.from_numpy(np.stack(masks)).float())


def _best(width: int, height: int, crop: int, most: int) -> tuple[int, int]:
    """Crops across and down whose aspect is nearest; of equally near ones a larger one where the picture fills half of it."""
    best, least = (1, 1), float("inf")
    for across, down in sorted(((i, j) for i in range(1, most + 1) for j in range(1, most // i + 1)), key=math.prod):
        off = abs(width / height - across / down)
        if off < least:
            best, least = (across, down), off
        elif off == least and width * height > 0.5 * crop * crop * across * down:
            best = (across, down)
    return best


def pixels_of(item: MediaItem, crop: int, most: int = 36) -> Pixels:
    return plain_pixels(Image.fromarray(decoded(item)[0]), crop, most)
