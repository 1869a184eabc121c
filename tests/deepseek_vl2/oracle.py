"""The judge: SigLIP and decoders of transformers on the weights of a checkpoint, joined as the model's makers join them.

Tiny has no class of its own in transformers: its decoder is Llama's, whose attention it has, with DeepSeek-V2's experts in the
layers that have some. Small is DeepSeek-V2; base, whose experts are chosen by sigmoids, DeepSeek-V3.
"""

import json
from functools import cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors.torch import load_file

import oracle as transformers_oracle
from oracle import OracleEmbeddings
from sightline.types import Request

transformers = transformers_oracle.transformers
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe  # noqa: E402

TILE, MOST_TILED = 384, 2
Weights = dict[str, torch.Tensor]


def part_of(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


# ---- Pixels and prompts


def best_canvas(width: int, height: int, candidates: list[list[int]]) -> tuple[int, int]:
    """(width, height) of the candidate that keeps the most pixels; then the one with the fewest others; then the first."""

    def value(candidate: list[int]) -> tuple[int, int]:
        wide, high = candidate
        scale = min(wide / width, high / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - wide * high

    wide, high = max(candidates, key=value)
    return wide, high


def pad(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return ImageOps.pad(image, size, color=(127, 127, 127))


def tiles_of(image: Image.Image, candidates: list[list[int]], images: int) -> tuple[list[Image.Image], tuple[int, int]]:
    """The global view and the tiles, and how many tiles across and down."""
    wide, high = best_canvas(*image.size, candidates) if images <= MOST_TILED else (TILE, TILE)
    canvas, found = pad(image, (wide, high)), [pad(image, (TILE, TILE))]
    for top in range(0, high, TILE):
        found += [canvas.crop((left, top, left + TILE, top + TILE)) for left in range(0, wide, TILE)]
    return found, (wide // TILE, high // TILE)


def pixels_of(tile: Image.Image) -> torch.Tensor:
    """[3, height, width] from -1 to 1"""
    numbers = torch.frombuffer(bytearray(tile.tobytes()), dtype=torch.uint8).view(tile.height, tile.width, 3)
    return (numbers.permute(2, 0, 1).float() / 255 - 0.5) / 0.5


def parts_of(messages: list[dict[str, Any]]) -> list[str | Image.Image]:
    """A conversation as the processor of the model's makers encodes it: texts, each by itself, and images."""
    found: list[str | Image.Image] = ["<｜begin▁of▁sentence｜>"]
    for message in messages:
        content = message["content"]
        pieces = [{"type": "text", "text": content}] if isinstance(content, str) else content
        said: list[str | Image.Image] = []
        for piece in pieces:
            said += [piece["text"]] if piece["type"] == "text" else [piece["image"], "\n"]
        if isinstance(said[0], str):
            said[0] = said[0].lstrip()
        if isinstance(said[-1], str):
            said[-1] = said[-1].rstrip()
        if message["role"] == "user":
            said = ["<|User|>: ", *said, "\n\n<|Assistant|>:"]
        elif message["role"] == "assistant":
            said = [*said, "<｜end▁of▁sentence｜>"]
        found += said
    return found


def images_of(messages: list[dict[str, Any]]) -> list[Image.Image]:
    return [part for part in parts_of(messages) if isinstance(part, Image.Image)]


# ---- Weights into transformers' modules


def siglip(weights: Weights, config: dict[str, Any], dtype: torch.dtype) -> Any:
    width = config["width"]
    made = transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(
            hidden_size=width,
            intermediate_size=int(width * config["mlp_ratio"]),
            num_hidden_layers=config["layers"],
            num_attention_heads=config.get("heads", 16),
            image_size=TILE,
            patch_size=config["patch_size"],
            vision_use_head=False,
        )
    )
    state = {
        "embeddings.patch_embedding.weight": weights["patch_embed.proj.weight"],
        "embeddings.patch_embedding.bias": weights["patch_embed.proj.bias"],
        "embeddings.position_embedding.weight": weights["pos_embed"][0],
        "post_layernorm.weight": weights["norm.weight"],
        "post_layernorm.bias": weights["norm.bias"],
    }
    names = {"norm1": "layer_norm1", "norm2": "layer_norm2", "attn.proj": "self_attn.out_proj", "mlp.fc1": "mlp.fc1"}
    for layer in range(config["layers"]):
        for kind in ("weight", "bias"):
            for ours, theirs in {**names, "mlp.fc2": "mlp.fc2"}.items():
                state[f"encoder.layers.{layer}.{theirs}.{kind}"] = weights[f"blocks.{layer}.{ours}.{kind}"]
            for name, part in zip("qkv", weights[f"blocks.{layer}.attn.qkv.{kind}"].chunk(3), strict=True):
                state[f"encoder.layers.{layer}.self_attn.{name}_proj.{kind}"] = part
    _load(made, state)
    return made.to(dtype).eval()


def _load(module: Any, state: Weights) -> None:
    """Into every parameter and buffer, under the module's own prefix."""
    own = module.state_dict()
    (prefix,) = {name.removesuffix(key) for key in list(state)[:1] for name in own if name.endswith(key)}
    module.load_state_dict({prefix + name: tensor for name, tensor in state.items()})


def decoder(weights: Weights, config: dict[str, Any], dtype: torch.dtype) -> Any:
    shared = {name: config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")}
    shared |= {
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": config["num_key_value_heads"],
        "max_position_embeddings": config["max_position_embeddings"],
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.get("rope_theta", 1e4)},
        "tie_word_embeddings": False,
    }
    experts = {
        "n_routed_experts": config["n_routed_experts"],
        "num_experts_per_tok": config["num_experts_per_tok"],
        "n_shared_experts": config["n_shared_experts"],
        "moe_intermediate_size": config["moe_intermediate_size"],
        "first_k_dense_replace": config["first_k_dense_replace"],
        "routed_scaling_factor": config.get("routed_scaling_factor", 1.0),
        "norm_topk_prob": config.get("norm_topk_prob", False),
        "n_group": config["n_group"],
        "topk_group": config["topk_group"],
    }
    method = config["topk_method"]
    if config.get("use_mla", True):
        latent = {name: config[name] for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
        sigmoid = config.get("scoring_func") == "sigmoid"
        kinds = ("DeepseekV3Config", "DeepseekV3ForCausalLM") if sigmoid else ("DeepseekV2Config", "DeepseekV2ForCausalLM")
        kind, model = (getattr(transformers, name) for name in kinds)
        own = {} if sigmoid else {"topk_method": method, "head_dim": config["qk_rope_head_dim"]}
        made = model(kind(**shared, **experts, **latent, **own, q_lora_rank=None))
    else:
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared))
        moe = transformers.DeepseekV2Config(**shared, **experts, topk_method=method)
        for layer in made.model.layers[config["first_k_dense_replace"] :]:
            layer.mlp = DeepseekV2Moe(moe)
    state = dict(weights)
    for layer in range(config["first_k_dense_replace"], config["num_hidden_layers"]):
        theirs = f"model.layers.{layer}.mlp.experts"
        each = [
            [state.pop(f"{theirs}.{index}.{name}_proj.weight") for index in range(config["n_routed_experts"])]
            for name in ("gate", "up", "down")
        ]
        gate, up, down = (torch.stack(matrices) for matrices in each)
        state |= {f"{theirs}.gate_up_proj": torch.cat((gate, up), 1), f"{theirs}.down_proj": down}
    made.load_state_dict(state)
    return made.to(dtype).eval()


class JoinedOracle:
    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.folder, self.dtype = folder, dtype
        self.config = json.loads((folder / "config.json").read_text())
        weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
        self.tower = siglip(part_of(weights, "vision."), self.config["vision_config"], dtype)
        self.decoder = decoder(part_of(weights, "language."), self.config["language_config"], dtype)
        self.projector = part_of(weights, "projector.layers.")
        self.newline, self.separator = weights["image_newline"], weights["view_seperator"]
        self.model = SimpleNamespace(model=SimpleNamespace(language_model=self.decoder.model))  # where routing.py looks

    @cached_property
    def tokenizer(self) -> Any:
        return transformers.PreTrainedTokenizerFast.from_pretrained(self.folder)

    def ids(self, messages: list[dict[str, Any]]) -> list[int]:
        parts, found = parts_of(messages), []
        images = len(images_of(messages))
        pad = self.tokenizer.convert_tokens_to_ids("<image>")
        side = -(-(TILE // self.config["vision_config"]["patch_size"]) // 2)
        for part in parts:
            if isinstance(part, str):
                found += self.tokenizer.encode(part, add_special_tokens=False)
            else:
                _, (across, down) = tiles_of(part, self.config["candidate_resolutions"], images)
                found += [pad] * (side * (side + 1) + 1 + down * side * (across * side + 1))
        return found

    @torch.inference_mode()
    def tile_rows(self, tiles: list[Image.Image]) -> torch.Tensor:
        """[tiles, side, side, size] of the projector."""
        pixels = torch.stack([pixels_of(tile) for tile in tiles]).to(self.dtype)
        hidden = self.tower(pixel_values=pixels).last_hidden_state
        side = TILE // self.config["vision_config"]["patch_size"]
        grid = hidden.view(len(tiles), side, side, -1).permute(0, 3, 1, 2)
        if side % 2:
            grid = F.pad(grid, (0, 1, 0, 1))
        joined = F.unfold(grid, kernel_size=2, stride=2).transpose(1, 2)
        inner = F.gelu(F.linear(joined, self.projector["0.weight"], self.projector["0.bias"]))
        rows = F.linear(inner, self.projector["2.weight"], self.projector["2.bias"])
        return rows.view(len(tiles), -(-side // 2), -(-side // 2), -1)

    def rows(self, images: list[Image.Image]) -> OracleEmbeddings:
        found: list[torch.Tensor] = []
        for image in images:
            tiles, (across, down) = tiles_of(image, self.config["candidate_resolutions"], len(images))
            whole, *parts = self.tile_rows(tiles)
            for line in whole:
                found += [*line, self.newline]
            found.append(self.separator)
            for first in range(0, down * across, across):
                for lines in zip(*parts[first : first + across], strict=True):
                    found += [row for line in lines for row in line] + [self.newline]
        return OracleEmbeddings(torch.stack(found), [])

    @torch.inference_mode()
    def logits_for_request(self, request: Request, rows: OracleEmbeddings | None, extra: list[int]) -> torch.Tensor:
        """[tokens, vocab] for our ids, with the rows where our spans say, and `extra` tokens after the prompt."""
        logits: torch.Tensor = self.decoder(inputs_embeds=self._embeds(request, rows, extra)[None]).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, request: Request, rows: OracleEmbeddings | None, count: int) -> list[int]:
        embeds = self._embeds(request, rows, [])[None]
        found, cache = [], transformers.DynamicCache(config=self.decoder.config)
        while len(found) < count:
            logits = self.decoder(inputs_embeds=embeds, past_key_values=cache).logits[0, -1]
            found.append(int(logits.argmax()))
            embeds = self.decoder.get_input_embeddings()(torch.tensor([found[-1:]]))
        return found

    def _embeds(self, request: Request, rows: OracleEmbeddings | None, extra: list[int]) -> torch.Tensor:
        embeds: torch.Tensor = self.decoder.get_input_embeddings()(torch.tensor([*request.token_ids.tolist(), *extra])).clone()
        first = 0
        for span in request.spans:  # an image is one run
            assert rows is not None and span.row == 0
            embeds[span.start : span.start + span.count] = rows.main[first : first + span.count]
            first += span.count
        assert first == (0 if rows is None else len(rows.main))
        return embeds


@lru_cache(maxsize=8)
def joined_oracle(folder: Path, dtype: torch.dtype = torch.float32) -> JoinedOracle:
    return JoinedOracle(folder, dtype)
