"""Compressed attention over ranks: each has some heads. Latents are of all heads, so every rank makes and keeps them."""

import dataclasses

from sightline.models.families.deepseek_vl2.spec import LatentAttentionSpec
from sightline.models.sharding import PartShard
from sightline.models.weights.expressions import Share
from sightline.parallel.split import head_shares


def shard_latent_attention(spec: LatentAttentionSpec, rank: int, ranks: int, unit: int) -> PartShard:
    share = head_shares(spec.num_heads, spec.num_heads, ranks)[rank]
    heads = share.first, share.count
    shares = {
        "q.weight": Share(0, ((share.first * spec.query_dim, share.count * spec.query_dim),)),
        "keys": Share(0, (heads,)),
        "values": Share(0, (heads,)),
        "out.weight": Share(1, ((share.first * spec.value_dim, share.count * spec.value_dim),)),
    }
    return PartShard(dataclasses.replace(spec, num_heads=share.count), shares)
