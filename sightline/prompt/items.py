"""From where a medium is to a MediaItem: fetched within limits and known by its header; its pixels stay encoded."""

from typing import Any

from sightline.config import MediaConfig
from sightline.errors import PromptError
from sightline.media.item import item_of
from sightline.media.limits import RequestBudget
from sightline.media.source import load_media
from sightline.prompt.media_options import NO_OPTIONS, MediaOptions, check_planned, with_options
from sightline.spec import ProcessorSpec
from sightline.timing import StageClock
from sightline.types import MediaItem, MediaRef


def load_item(
    kind: str,
    source: Any,
    processor: ProcessorSpec,
    limits: MediaConfig,
    clock: StageClock | None = None,
    budget: RequestBudget | None = None,
    options: MediaOptions = NO_OPTIONS,
) -> MediaItem:
    """Fetches one medium and reads its header. `budget` counts for a whole request."""
    if kind not in ("image", "video"):
        raise PromptError(f"A medium has kind {kind!r}; it must be 'image' or 'video'.")
    (ref,) = load_media("image" if kind == "image" else "video", source, limits, clock, budget)
    return make_item(ref, processor, budget, options)


def make_item(
    ref: MediaRef, processor: ProcessorSpec, budget: RequestBudget | None = None, options: MediaOptions = NO_OPTIONS
) -> MediaItem:
    """What follows from a header. `budget` counts what decoding costs and the frames, of a whole request."""
    own_ref, own_processor = with_options(ref, processor, options)
    item = item_of(own_ref, own_processor)
    if own_processor is not processor:
        check_planned(item, processor)
    if budget is not None:
        budget.take_item(item)
    return item
