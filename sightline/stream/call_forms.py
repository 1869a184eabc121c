"""The forms in which models write calls of tools, told by the chat template, and what reads each of them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sightline.stream.glm_call import GlmCall
from sightline.stream.xml_call import XmlCall, schemas_of
from sightline.types import CallForm

CallReader = Callable[[], XmlCall | GlmCall]
_READERS: Mapping[str, type[XmlCall] | type[GlmCall]] = {"xml": XmlCall, "glm": GlmCall}


def call_reader(form: CallForm, tools: Sequence[Mapping[str, Any]]) -> CallReader | None:
    """What reads one call; None for JSON, which answer_parts.py reads itself."""
    reader = _READERS.get(form)
    return functools.partial(reader, schemas_of(tools)) if reader is not None else None
