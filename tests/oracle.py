"""transformers on the same weights: the judge of what is correct. Never imported by the package."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchvision_on_cpu

torchvision_on_cpu.declare_operators()

import transformers  # noqa: E402
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil  # noqa: E402
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil  # noqa: E402

from sightline.types import Request  # noqa: E402

transformers.logging.set_verbosity_error()
assert find_spec("fla") is None, "transformers would use its kernels in place of its own definitions"
torch.backends.cudnn.allow_tf32 = False  # transformers' patch embedding is a convolution

CLASSES = {
    "qwen3-vl": transformers.Qwen3VLForConditionalGeneration,
    "qwen3.5-moe": transformers.Qwen3_5MoeForConditionalGeneration,
    "qwen3.5": transformers.Qwen3_5ForConditionalGeneration,
    "qwen2.5-vl": transformers.Qwen2_5_VLForConditionalGeneration,
    "glm-4.1v": transformers.Glm4vForConditionalGeneration,
    "glm-4.6v-flash": transformers.Glm4vForConditionalGeneration,
    "qwen3-vl-moe": transformers.Qwen3VLMoeForConditionalGeneration,
    "glm-4.5v": transformers.Glm4vMoeForConditionalGeneration,
    "glm-4.6v": transformers.Glm4vMoeForConditionalGeneration,
}
PROCESSORS = {
    "qwen3-vl": (transformers.Qwen3VLProcessor, Qwen2VLImageProcessorPil, transformers.Qwen3VLVideoProcessor),
    "qwen3.5": (transformers.Qwen3VLProcessor, Qwen2VLImageProcessorPil, transformers.Qwen3VLVideoProcessor),
    "qwen2.5-vl": (transformers.Qwen2_5_VLProcessor, Qwen2VLImageProcessorPil, transformers.Qwen2VLVideoProcessor),
    "glm-4.1v": (transformers.Glm4vProcessor, Glm4vImageProcessorPil, transformers.Glm4vVideoProcessor),
    "glm-4.6v-flash": (transformers.Glm46VProcessor, Glm46VImageProcessorPil, transformers.Glm46VVideoProcessor),
}
PROCESSORS |= {"qwen3-vl-moe": PROCESSORS["qwen3-vl"], "glm-4.5v": PROCESSORS["glm-4.1v"]}
PROCESSORS |= {"qwen3.5-moe": PROCESSORS["qwen3.5"]}
PROCESSORS |= {"glm-4.6v": PROCESSORS["glm-4.6v-flash"]}


@dataclass
class OracleEmbeddings:
    """What a tower gives for one item."""

    main: torch.Tensor  # [rows, hidden]
    deepstack_features: list[torch.Tensor]

    @property
    def joined(self) -> torch.Tensor:
        return torch.cat((self.main, *self.deepstack_features), dim=1)


class Oracle:
    def __init__(self, folder: Path, family: str, device: str, dtype: torch.dtype) -> None:
        self.folder, self.family, self.device = folder, family, device
        self.model: Any = CLASSES[family].from_pretrained(folder, dtype=dtype).to(device).eval()

    @cached_property
    def processor(self) -> Any:
        """With the Pillow-backed image processor, which is the one that resizes as Pillow does."""
        whole, image, video = PROCESSORS[self.family]
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(self.folder)
        template = (self.folder / "chat_template.jinja").read_text()
        return whole(
            image_processor=image.from_pretrained(self.folder),
            tokenizer=tokenizer,
            video_processor=video.from_pretrained(self.folder),
            chat_template=template,
        )

    def inputs(self, messages: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The processor's tensors for messages whose images are PIL images."""
        images = [p["image"] for m in messages if isinstance(m["content"], list) for p in m["content"] if p["type"] == "image"]
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        batch = self.processor(text=[text], images=images or None, return_tensors="pt")
        return {name: value.to(self.device) for name, value in batch.items()}

    @torch.inference_mode()
    def positions(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        if "image_grid_thw" not in inputs:
            count = inputs["input_ids"].shape[1]
            return torch.arange(count).expand(3, count), 0
        positions, delta = self.model.model.get_rope_index(
            inputs["input_ids"], inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
        )
        return positions[:, 0].cpu(), int(delta)

    @torch.inference_mode()
    def rows(self, pixels: torch.Tensor, grid: torch.Tensor) -> OracleEmbeddings:
        """The tower on full (unfolded) patches. GLM wants each temporal group as a grid of its own."""
        if self.family.startswith("glm"):
            grid = torch.cat([torch.tensor([[1, h, w]] * t) for t, h, w in grid.tolist()])
        visual = self.model.model.visual
        out = visual(pixels.to(self.device, visual.dtype), grid_thw=grid.to(self.device))
        return OracleEmbeddings(out.pooler_output, list(getattr(out, "deepstack_features", None) or []))

    @torch.inference_mode()
    def logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """[tokens, vocab]"""
        logits: torch.Tensor = self.model(**inputs).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, inputs: dict[str, torch.Tensor], count: int) -> list[int]:
        out = self.model.generate(**inputs, do_sample=False, min_new_tokens=count, max_new_tokens=count, eos_token_id=-1)
        return list(out[0, inputs["input_ids"].shape[1] :].tolist())

    @torch.inference_mode()
    def logits_for_request(
        self, request: Request, rows: OracleEmbeddings | None, extra: list[int], **arguments: Any
    ) -> torch.Tensor:
        """Logits for *our* ids and positions, with the rows put where our spans say, and `extra` tokens after the prompt."""
        inner = self.model.model
        ids = torch.tensor([*request.token_ids.tolist(), *extra], device=self.device)
        tail = np.arange(len(request), len(ids)) + request.position_delta
        positions = np.concatenate((request.positions, np.broadcast_to(tail, (3, len(extra)))), axis=1)
        embeds = inner.get_input_embeddings()(ids).clone()
        if rows is not None:
            index = torch.cat([torch.arange(s.start, s.start + s.count) for s in request.spans]).to(self.device)
            first = np.cumsum([0, *(item.rows for item in request.items)])
            source = torch.cat([torch.arange(first[s.item] + s.row, first[s.item] + s.row + s.count) for s in request.spans])
            source = source.to(self.device)
            embeds[index] = rows.main[source].to(embeds.dtype)
            if rows.deepstack_features:
                mask = torch.zeros(1, len(ids), dtype=torch.bool, device=self.device)
                mask[0, index] = True
                arguments |= {
                    "visual_pos_masks": mask,
                    "deepstack_visual_embeds": [deepstack[source] for deepstack in rows.deepstack_features],
                }
        return self._language_model(embeds, torch.from_numpy(positions), **arguments)

    def _language_model(self, embeds: torch.Tensor, positions: torch.Tensor, **arguments: Any) -> torch.Tensor:
        hidden = self.model.model.language_model(
            inputs_embeds=embeds[None], position_ids=positions.long()[:, None].to(self.device), **arguments
        ).last_hidden_state
        logits: torch.Tensor = self.model.lm_head(hidden)[0]
        return logits

    @torch.inference_mode()
    def greedy_for_request(self, request: Request, rows: OracleEmbeddings | None, count: int) -> list[int]:
        """As `greedy`, from our ids, positions and spans."""
        cache = transformers.DynamicCache(config=self.model.config.text_config)
        logits = self.logits_for_request(request, rows, [], past_key_values=cache)
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(int(logits[-1].argmax()))
            embeds = self.model.model.get_input_embeddings()(torch.tensor(tokens[-1:], device=self.device))
            position = len(request) + len(tokens) - 1 + request.position_delta
            logits = self._language_model(embeds, torch.full((3, 1), position), past_key_values=cache)
        return tokens


@lru_cache(maxsize=12)
def oracle(folder: Path, family: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Oracle:
    return Oracle(folder, family, device, dtype)
