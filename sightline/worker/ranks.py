"""The ranks that hold one model together, as a worker sees them. With one rank there is nothing of this."""

from dataclasses import dataclass

import torch

from sightline.config import EngineConfig
from sightline.encoder.vision_parallel import VisionRanks
from sightline.errors import ConfigError
from sightline.models.model import VisionLanguageModel
from sightline.models.patch_tower import PatchTower
from sightline.models.sharding import ModelShard, shard_model
from sightline.parallel.costs import TowerCosts
from sightline.parallel.group import Group
from sightline.parallel.rank_info import RankInfo
from sightline.spec import ModelSpec, PatchTowerSpec
from sightline.worker.measure_link import measure_link


@dataclass(frozen=True)
class Ranks:
    steps: Group
    tower: Group  # what is said beside steps, on another stream
    shard: ModelShard

    @classmethod
    def join(cls, rank: RankInfo, spec: ModelSpec, config: EngineConfig, device: torch.device) -> "Ranks":
        """Waits until all are there."""
        if config.image_decoder == "gpu":
            raise ConfigError("image_decoder is 'gpu', but with tensor_parallel_size above 1 images are decoded on the CPU.")
        has_blocks = isinstance(spec.vision, PatchTowerSpec)
        if not has_blocks and config.vision_parallel not in ("auto", "data"):
            raise ConfigError(
                f"vision_parallel is {config.vision_parallel!r}, but the tower of the family {spec.family} takes only 'data'."
            )
        split = config.vision_parallel == "tensor"
        shard = shard_model(spec, rank.rank, rank.size, split, whole_experts=config.expert_parallel)
        steps = Group.join(rank, device)
        return cls(steps, steps.another(), shard)

    def connect(self, model: VisionLanguageModel) -> None:
        """The model's modules add up over ranks from now on."""
        model.use_group(self.steps, self.tower, self.shard.vocabulary)

    def of_tower(self, model: VisionLanguageModel, config: EngineConfig) -> VisionRanks | None:
        """None where every rank runs all of the tower, or a part of each of its matrices."""
        if config.vision_parallel == "tensor":
            return None
        weight = model.text.embed_tokens.weight
        link = measure_link(self.tower, weight.device, weight.dtype)
        mode, vision = config.vision_parallel, model.spec.vision
        if isinstance(vision, PatchTowerSpec) and isinstance(model.vision, PatchTower):
            return VisionRanks(self.tower, mode, model.vision, TowerCosts.of(vision), link)
        return VisionRanks(self.tower, "data", model.vision, TowerCosts(1, 1, 1, 1, 0), link)
