"""A gated delta net over ranks: some key heads with all value heads that share them, as attention's keys and queries.

    qkv_gate   queries │ keys │ values │ gate      a rank's rows of each; `conv` has those of the first three
    rates      b │ a                               its value heads of each; a_log and dt_bias likewise
    out        its value heads' columns

The state is that of its value heads; the inputs of the convolution that it keeps are those of its channels. Where ranks are
more than key heads, several have the same one, and each works out that head's queries and keys for itself.
"""

import dataclasses

from sightline.models.families.qwen3_5.spec import DeltaNetSpec
from sightline.models.sharding import PartShard
from sightline.models.weights.expressions import Share
from sightline.parallel.split import head_shares


def shard_delta_net(spec: DeltaNetSpec, rank: int, ranks: int, unit: int) -> PartShard:
    share = head_shares(spec.value_heads, spec.key_heads, ranks, "value heads of a gated delta net")[rank]
    keys = share.first_kv * spec.key_dim, share.kv_count * spec.key_dim
    values = share.first * spec.value_dim, share.count * spec.value_dim
    channels = keys, (spec.keys + keys[0], keys[1]), (2 * spec.keys + values[0], values[1])
    heads = share.first, share.count
    shares = {
        "qkv_gate.weight": Share(0, (*channels, (spec.channels + values[0], values[1]))),
        "rates.weight": Share(0, (heads, (spec.value_heads + heads[0], heads[1]))),
        "conv": Share(0, channels),
        "a_log": Share(0, (heads,)),
        "dt_bias": Share(0, (heads,)),
        "out.weight": Share(1, (values,)),
    }
    return PartShard(dataclasses.replace(spec, key_heads=share.kv_count, value_heads=share.count), shares)
