"""A fetch as tests make it, and a refusal by its whole sentence."""

import pytest

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.addresses import Resolver
from sightline.media.fetch import fetch
from sightline.media.limits import ByteAllowance

PUBLIC = MediaConfig()


def get(url: str, limits: MediaConfig = PUBLIC, resolver: Resolver | None = None) -> bytes:
    return fetch(url, limits, ByteAllowance("image", "X", limits), resolver)


def refused(url: str, reason: str, limits: MediaConfig = PUBLIC, resolver: Resolver | None = None) -> None:
    with pytest.raises(MediaError) as caught:
        get(url, limits, resolver)
    assert str(caught.value) == f"Image X cannot be fetched: {reason}"
