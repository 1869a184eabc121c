"""What DeepSeek-VL2's tower and its compressed attention are, in numbers."""

from dataclasses import dataclass

from sightline.spec import LatentCacheSpec, TextRopeSpec, VisionSpec


@dataclass(frozen=True)
class SiglipTowerSpec(VisionSpec):
    """SigLIP over tiles of one size, and a projector that makes a row of join x join patches."""

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    patch_size: int
    tile_size: int  # pixels along a side
    join: int
    projector_size: int  # between the projector's two linear maps

    @property
    def side(self) -> int:
        """Patches along a side of a tile; pixels behind the last are not seen."""
        return self.tile_size // self.patch_size

    @property
    def rows_side(self) -> int:
        """Rows along a side of a tile, whose patches are padded with zeros to a multiple of `join`."""
        return -(-self.side // self.join)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_width(self) -> int:
        return 3 * self.patch_size**2

    @property
    def joined_size(self) -> int:
        return self.hidden_size * self.join**2

    @property
    def summary(self) -> str:
        heads = f"{self.num_heads} heads of {self.head_dim}"
        return f"{self.depth} blocks of {self.hidden_size}, {heads}, tiles of {self.tile_size} pixels"


@dataclass(frozen=True)
class LatentAttentionSpec:
    """Attention whose keys and values are linear maps of one vector per token, the latent, which alone is kept (MLA).

    A head's key is `nope_dim` numbers of the latent's map and `rope.rotary_dim` rotated ones that all heads share.
    """

    num_heads: int
    nope_dim: int
    value_dim: int
    rank: int  # numbers of a latent
    rope: TextRopeSpec
    norm_eps: float

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope.rotary_dim

    @property
    def cache(self) -> LatentCacheSpec:
        return LatentCacheSpec(self.rank, self.rope.rotary_dim)
