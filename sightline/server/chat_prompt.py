"""A chat body to a `Request`: messages for the template, media from where they are, ids, positions. No pixel is decoded."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sightline.errors import PromptError
from sightline.media.data_url import EmbeddedFile
from sightline.media.limits import RequestBudget
from sightline.media.source import is_data_url, load_ref_async, load_refs
from sightline.prompt.messages import normalise_messages, refuse_placeholders
from sightline.prompt.request import assemble, make_item
from sightline.server.body_files import Files
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.inflight import Entry
from sightline.server.parse import MAX_VALUES, is_too_deep, most_values, too_many_values
from sightline.server.protocol import (
    AssistantMessage,
    ImagePart,
    Message,
    Part,
    ProcessorOptions,
    TextPart,
    ToolMessage,
    Url,
    VideoPart,
)
from sightline.spec import ProcessorSpec
from sightline.timing import StageClock
from sightline.types import MediaRef, Request

# Characters of data URLs that one thread decodes, one after another, in a few milliseconds. Eight pictures of 1080p over HTTP
# took no less in four threads: Python lets only one of them decode at a time. More go side by side.
_SMALL = 12_000_000
_NO_FILES: Files = {}


@dataclass(frozen=True)
class MediaWanted:
    """A medium as a message names it."""

    kind: Literal["image", "video"]
    url: str | EmbeddedFile | None
    uuid: str | None
    min_pixels: int | None
    max_pixels: int | None
    where: str  # the field, for messages


@dataclass(frozen=True)
class ChatPrompt:
    request: Request
    opens_reasoning: bool  # the template itself began a block of reasoning


@dataclass
class PromptDraft:
    """A chat on its way to a prompt: complete if nothing had to be waited for."""

    messages: list[dict[str, Any]]  # for the template
    wanted: list[MediaWanted]
    tools: Sequence[Mapping[str, Any]]
    template_kwargs: dict[str, Any] | None
    budget: RequestBudget
    clock: StageClock  # told of each stage
    refs: list[MediaRef] | None = None
    prompt: ChatPrompt | None = None


def draft_prompt(
    context: ServerContext,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    template_kwargs: dict[str, Any] | None,
    options: ProcessorOptions | None,
    files: Files,
    on_loop: bool,
) -> PromptDraft:
    """As much as can be done without waiting, all of it in one go where media are small and come with the body: a change of
    threads takes as long as a small picture. `on_loop` says that the event loop must not be held up."""
    for_template, wanted = template_messages(messages, options, files)
    budget = RequestBudget(context.config.media)
    budget.take_items(medium.kind for medium in wanted)
    draft = PromptDraft(for_template, wanted, tools, template_kwargs, budget, StageClock())
    if not wanted:
        draft.refs = []
    elif not on_loop and all(is_data_url(medium.url) for medium in wanted) and _characters(wanted) <= _SMALL:
        media = [(medium.kind, medium.url) for medium in wanted]
        draft.refs = load_refs(media, context.config.media, draft.clock, budget, context.digester)
    if draft.refs is not None:
        draft.prompt = _build(context, draft, draft.refs)
    return draft


def _characters(wanted: Sequence[MediaWanted]) -> int:
    urls = [medium.url or "" for medium in wanted]
    return sum(url.characters if isinstance(url, EmbeddedFile) else len(url) for url in urls)


async def complete_prompt(context: ServerContext, draft: PromptDraft, caller: str, entry: Entry) -> ChatPrompt:
    """`entry` is told of bytes that are fetched."""
    prompt, refs = draft.prompt, draft.refs
    if prompt is None or refs is None:
        refs = await _load_all(context, draft.wanted, caller, draft.clock, draft.budget, entry)
        prompt = await asyncio.get_running_loop().run_in_executor(context.pool, _build, context, draft, refs)
    for medium, ref in zip(draft.wanted, refs, strict=True):
        if medium.uuid is not None and ref.data:
            context.names.remember(caller, medium.uuid, ref)
    return prompt


def template_messages(
    messages: Sequence[Message], options: ProcessorOptions | None = None, files: Files = _NO_FILES
) -> tuple[list[dict[str, Any]], list[MediaWanted]]:
    """Messages as `normalise_messages` takes them, each medium a MediaWanted, and all of these in order."""
    wanted: list[MediaWanted] = []
    plain: list[dict[str, Any]] = []
    _check_arguments(messages)
    for index, message in enumerate(messages):
        role = message.__struct_config__.tag
        own: dict[str, Any] = {"role": "system" if role == "developer" else role}
        content = message.content
        if isinstance(content, list):
            where = f"messages[{index}].content"
            own["content"] = [_part(part, f"{where}[{place}]", options, files, wanted) for place, part in enumerate(content)]
        else:
            own["content"] = content
        if isinstance(message, AssistantMessage):
            own |= _assistant_fields(message)
        if isinstance(message, ToolMessage) and message.tool_call_id is not None:
            own["tool_call_id"] = message.tool_call_id
        plain.append(own)
    return plain, wanted


def _assistant_fields(message: AssistantMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if message.reasoning_content is not None:
        fields["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    return fields


def _check_arguments(messages: Sequence[Message]) -> None:
    """The body's parser has seen strings; what is in them is parsed now, and may be no more than it would take itself."""
    calls = [call for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls or ()]
    given = [call.function.arguments for call in calls if isinstance(call.function.arguments, str)]
    if sum(map(len, given)) > MAX_VALUES and sum(most_values(text.encode(errors="replace")) for text in given) > MAX_VALUES:
        raise too_many_values("The arguments of tool calls have")


def _arguments(call: Any) -> Any:
    """Templates expect an object where OpenAI's API has a string of JSON."""
    given = call.function.arguments
    if isinstance(given, str):
        try:
            parsed = json.loads(given)
        except (ValueError, RecursionError):
            return given
        return parsed if isinstance(parsed, dict) and not is_too_deep(parsed) else given
    return given


def _part(part: Part, where: str, options: ProcessorOptions | None, files: Files, wanted: list[MediaWanted]) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    kind: Literal["image", "video"] = "image" if isinstance(part, ImagePart) else "video"
    given = part.image_url if isinstance(part, ImagePart) else part.video_url
    url = given if isinstance(given, Url) else Url(url=given)
    if not url.url and part.uuid is None:
        raise ApiError(400, f"{where} has no URL in '{kind}_url.url' and no 'uuid'.", param=f"{where}.{kind}_url")
    shared = options or ProcessorOptions()
    medium = MediaWanted(
        kind=kind,
        url=files.get(url.url, url.url) if url.url else None,
        uuid=part.uuid,
        min_pixels=url.min_pixels if url.min_pixels is not None else shared.min_pixels,
        max_pixels=url.max_pixels if url.max_pixels is not None else shared.max_pixels,
        where=where,
    )
    if isinstance(part, VideoPart) and (url.min_pixels is not None or url.max_pixels is not None):
        raise ApiError(400, f"{where}.video_url has a size of its own, which only images may have.", param=where)
    wanted.append(medium)
    return {"type": kind, kind: medium}


async def _load_all(
    context: ServerContext,
    wanted: Sequence[MediaWanted],
    caller: str,
    clock: StageClock,
    budget: RequestBudget,
    entry: Entry,
) -> list[MediaRef]:
    """Bytes, digest and header of each medium, side by side. The first that cannot be had ends the loading of the others."""
    clocks = [StageClock() for _ in wanted]  # each is used in a thread

    async def one(medium: MediaWanted, own: StageClock) -> MediaRef:
        if medium.url is None:
            assert medium.uuid is not None
            return context.names.recall(caller, medium.kind, medium.uuid)
        return await load_ref_async(
            medium.kind,
            medium.url,
            context.config.media,
            own,
            budget=budget,
            executor=context.pool,
            on_fetched=entry.grow,
        )

    tasks = [asyncio.ensure_future(one(medium, own)) for medium, own in zip(wanted, clocks, strict=True)]
    try:
        refs = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    for own in clocks:
        for stage, seconds in own.seconds.items():
            clock.add(stage, seconds)
    return refs


def _build(context: ServerContext, draft: PromptDraft, refs: Sequence[MediaRef]) -> ChatPrompt:
    """All that follows when the media are there; fit for any thread."""
    files, placeholders, tools = context.files, context.placeholders, draft.tools
    kwargs = dict(draft.template_kwargs or {})
    for name in ("messages", "tools"):
        if name in kwargs:
            raise PromptError(f"chat_template_kwargs cannot set {name!r}.")
    with draft.clock.stage("prompt"):
        refuse_placeholders(kwargs, "chat_template_kwargs", placeholders)
        refuse_placeholders(tools, "tools", placeholders)
        for_template, _ = normalise_messages(draft.messages, placeholders)
        prompt = files.template.render(for_template, tools=list(tools) or None, **kwargs)
        items = [
            make_item(ref, _processor(files.processor, medium), draft.budget)
            for medium, ref in zip(draft.wanted, refs, strict=True)
        ]
        request = assemble(
            prompt,
            items,
            tokenizer=files.tokenizer,
            spec=files.spec,
            processor=files.processor,
            max_len=files.max_model_len - 1,  # room for one token of an answer
        )
    return ChatPrompt(request, prompt.rstrip().endswith("<think>"))


def _processor(processor: ProcessorSpec, medium: MediaWanted) -> ProcessorSpec:
    """The processor with the request's own sizes, which must lie within the server's."""
    if medium.min_pixels is None and medium.max_pixels is None:
        return processor
    spec = processor.image if medium.kind == "image" else processor.video
    least = medium.min_pixels if medium.min_pixels is not None else spec.min_pixels
    most = medium.max_pixels if medium.max_pixels is not None else spec.max_pixels
    for name, value in (("min_pixels", least), ("max_pixels", most)):
        if not spec.min_pixels <= value <= spec.max_pixels:
            raise ApiError(
                400,
                f"{name} is {value}, but must be between the server's {spec.min_pixels} and {spec.max_pixels} pixels "
                f"for {medium.kind}s.",
                param=name,
            )
    if least > most:
        raise ApiError(400, f"min_pixels is {least}, above max_pixels, {most}.", param="min_pixels")
    if medium.kind == "image":
        return dataclasses.replace(processor, image=dataclasses.replace(processor.image, min_pixels=least, max_pixels=most))
    return dataclasses.replace(processor, video=dataclasses.replace(processor.video, min_pixels=least, max_pixels=most))
