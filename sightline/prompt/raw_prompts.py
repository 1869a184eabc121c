"""Raw prompts in the forms that vLLM takes: a text, or an object with the text, or its token ids, and the media beside it.

```
{"prompt": "…<|image_pad|>…", "multi_modal_data": {"image": [PIL, …], "video": array}, "mm_processor_kwargs": {"fps": 1}}
{"prompt_token_ids": [1, 2, 3]}
```

Media are given by kind; which comes first, the placeholders in the text say.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from sightline.errors import PromptError
from sightline.prompt.builder import PromptBuilder
from sightline.prompt.expand import placeholder_kinds
from sightline.prompt.media_options import RequestOptions, request_options
from sightline.timing import StageClock
from sightline.types import Request

Prompt = str | Mapping[str, Any]
_FIELDS = ("prompt", "prompt_token_ids", "multi_modal_data", "mm_processor_kwargs")


def build_raw(prompts: PromptBuilder, prompt: Any, media: Sequence[Any], options: RequestOptions, clock: StageClock) -> Request:
    if isinstance(prompt, str):
        return prompts.text(prompt, media, options, clock)
    if not isinstance(prompt, Mapping):
        raise PromptError(f"A prompt must be a text or an object with 'prompt', not {type(prompt).__name__}.")
    unknown = next((name for name in prompt if name not in _FIELDS), None)
    if unknown is not None:
        raise PromptError(f"A prompt has a field {unknown!r} that is not supported; there is {', '.join(_FIELDS)}.")
    text, ids, data = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("multi_modal_data")
    if (text is None) == (ids is None):
        raise PromptError("A prompt must have either 'prompt' or 'prompt_token_ids'.")
    if media:
        raise PromptError("Media of a prompt that is an object belong into its 'multi_modal_data'.")
    if ids is not None:
        if data:
            raise PromptError("A prompt of token ids can have no media; give it as a text in 'prompt', with placeholders.")
        return prompts.token_ids(ids)
    if not isinstance(text, str):
        raise PromptError(f"The 'prompt' of a prompt must be a text, not {type(text).__name__}.")
    if prompt.get("mm_processor_kwargs"):
        options = request_options(prompt["mm_processor_kwargs"])
    return prompts.text(text, _in_order(text, data or {}, prompts), options, clock)


def _in_order(text: str, data: Mapping[str, Any], prompts: PromptBuilder) -> list[tuple[str, Any]]:
    """Media as their placeholders stand in the text. What is left over follows, to be refused with the count of both."""
    if not isinstance(data, Mapping):
        raise PromptError(f"multi_modal_data must be an object with 'image' and 'video', not {type(data).__name__}.")
    left: dict[str, list[Any]] = {"image": [], "video": []}
    for kind, given in data.items():
        if kind not in left:
            raise PromptError(f"multi_modal_data has {kind!r}; there are only 'image' and 'video'.")
        if given is not None:
            left[kind] = _several(kind, given)
    ordered = [(kind, left[kind].pop(0)) for kind in placeholder_kinds(text, prompts.processor) if left[kind]]
    return ordered + [(kind, source) for kind, sources in left.items() for source in sources]


def _several(kind: str, given: Any) -> list[Any]:
    """Items of one kind. A list of pictures is one video; so are an array of them, and either with its metadata."""
    if not isinstance(given, list):
        return [given]
    if kind == "video" and given and all(map(_is_picture, given)):
        return [given]
    return given


def _is_picture(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, np.ndarray) and value.ndim == 3)
