"""A chat body to a `Request`: messages for the template, media from where they are, ids, positions. No pixel is decoded."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pybase64

from sightline.media.arrays import ImageEmbeddings
from sightline.media.data_url import EmbeddedFile
from sightline.media.known_files import TenantFiles
from sightline.media.limits import Kind, RequestBudget
from sightline.media.lookups import LOOK_UPS
from sightline.media.source import AsyncLoader, load_all
from sightline.media.source_names import is_data_url
from sightline.prompt.continuation import cut, marked
from sightline.prompt.file_parts import read_file_part, with_pages
from sightline.prompt.items import make_item
from sightline.prompt.media_options import (
    NO_REQUEST_OPTIONS,
    SAMPLING,
    SIZES,
    MediaOptions,
    RequestOptions,
    options_from,
    request_options,
)
from sightline.prompt.template import opens_reasoning
from sightline.prompt.template_budget import TemplateBudgetError
from sightline.server.admission import MB, Entry
from sightline.server.body_files import Files, url_of
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.parse import MAX_VALUES, is_too_deep, most_values, too_many_values
from sightline.server.protocol import (
    AssistantMessage,
    ChatRequest,
    Embeddings,
    EmbeddingsPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    TokenizeRequest,
    ToolMessage,
    Url,
    VideoUrl,
)
from sightline.spec import ProcessorSpec
from sightline.timing import StageClock
from sightline.types import MediaRef, Request

# Characters of data URLs that one thread decodes, one after another, in a few milliseconds. Eight pictures of 1080p over HTTP
# took no less in four threads: Python lets only one of them decode at a time. More go side by side.
_SMALL = 12_000_000
_NO_FILES: Files = {}
LOW_DETAIL_ROWS = 256  # of an image with detail low, where the server allows so few
_ON_LOOP_S = 0.02  # for a template; one that takes longer is rendered again, in a thread


@dataclass(frozen=True)
class MediaWanted:
    """A medium as a message names it."""

    kind: Kind
    url: str | EmbeddedFile | ImageEmbeddings | list[str | EmbeddedFile] | None  # a list: frames of a video
    uuid: str | None
    options: MediaOptions
    name: str = ""  # what the client calls it
    low_detail: bool = False


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
    chat_template_kwargs: dict[str, Any] | None
    budget: RequestBudget
    clock: StageClock  # told of each stage
    continues: bool = False  # the last message goes on
    known: TenantFiles | None = None  # files that came before
    refs: list[list[MediaRef]] | None = None  # of each that is wanted: one, or the pages of a file
    prompt: ChatPrompt | None = None


def draft_prompt(
    context: ServerContext,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    chat_template_kwargs: dict[str, Any] | None,
    options: RequestOptions,
    files: Files,
    on_loop: bool,
    continues: bool = False,
    known: TenantFiles | None = None,
) -> PromptDraft:
    """As much as can be done without waiting, all of it in one go where media are small and come with the body: a change of
    threads takes as long as a small picture. `on_loop` says that the event loop must not be held up."""
    for_template, wanted = template_messages(messages, options, files)
    for medium in wanted:
        if isinstance(medium.url, ImageEmbeddings) and not context.config.server.enable_mm_embeds:
            fault = f"{medium.name} has type 'image_embeds', which this server does not take (enable_mm_embeds)."
            raise ApiError(400, fault, param=medium.name, code="unsupported_value")
    budget = context.prompts.budget_for([medium.kind for medium in wanted])
    draft = PromptDraft(for_template, wanted, tools, chat_template_kwargs, budget, StageClock(), continues, known)
    if not wanted:
        draft.refs = []
    elif not on_loop and all(_is_inline(medium) for medium in wanted) and _characters(wanted) <= _SMALL:
        media = [(medium.kind, medium.url, medium.name) for medium in wanted]
        draft.refs = load_all(media, context.config.media, draft.clock, budget, context.digester, known)
    if draft.refs is not None:
        try:
            draft.prompt = _build(context, draft, draft.refs, _ON_LOOP_S if on_loop else None)
        except TemplateBudgetError:
            if not on_loop:
                raise
    return draft


def _is_inline(medium: MediaWanted) -> bool:
    urls = _urls(medium)
    return bool(urls) and all(map(is_data_url, urls))


def _characters(wanted: Sequence[MediaWanted]) -> int:
    urls = [url for medium in wanted for url in _urls(medium)]
    return sum(url.characters if isinstance(url, EmbeddedFile) else len(url) for url in urls)


def _urls(medium: MediaWanted) -> list[str | EmbeddedFile]:
    if medium.url is None or isinstance(medium.url, ImageEmbeddings):
        return []
    return medium.url if isinstance(medium.url, list) else [medium.url]


async def complete_prompt(context: ServerContext, draft: PromptDraft, caller: str, entry: Entry) -> ChatPrompt:
    """`entry` is told of bytes that are fetched."""
    prompt, refs = draft.prompt, draft.refs
    if prompt is None or refs is None:
        refs = await _load_all(context, draft, caller, entry)
        prompt = await asyncio.get_running_loop().run_in_executor(context.pool, _build, context, draft, refs)
    for medium, (ref, *_) in zip(draft.wanted, refs, strict=True):
        if medium.uuid is not None and ref.data:
            context.names.remember(caller, medium.uuid, ref)
    return prompt


def template_messages(
    messages: Sequence[Message], options: RequestOptions = NO_REQUEST_OPTIONS, files: Files = _NO_FILES
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
            own["content"] = [
                _part(part, f"{where}[{position}]", options, files, wanted) for position, part in enumerate(content)
            ]
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


def options_of(body: ChatRequest | TokenizeRequest) -> RequestOptions:
    return request_options(msgspec.to_builtins(body.mm_processor_kwargs), msgspec.to_builtins(body.media_io_kwargs))


def _part(part: Part, where: str, options: RequestOptions, files: Files, wanted: list[MediaWanted]) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, EmbeddingsPart):
        embeddings = MediaWanted("image", _embeddings(part.image_embeds, where), None, MediaOptions(), where)
        wanted.append(embeddings)
        return {"type": "image", "image": embeddings}
    given = url_of(part)
    url = [files.get(each, each) for each in given] if isinstance(given, list) else files.get(given, given) if given else None
    if isinstance(part, FilePart):
        source = read_file_part(msgspec.to_builtins(part.file), where)
        medium = MediaWanted("pdf", url, None, options.of("image", source.options), source.name)
        wanted.append(medium)
        return {"type": "file", "file": medium}
    kind: Literal["image", "video"] = "image" if isinstance(part, ImagePart) else "video"
    if not url and part.uuid is None:
        raise ApiError(400, f"{where} has no URL in '{kind}_url.url' and no 'uuid'.", param=f"{where}.{kind}_url")
    own = part.image_url if isinstance(part, ImagePart) else part.video_url
    fields, names = (msgspec.to_builtins(own), SIZES if kind == "image" else (*SIZES, *SAMPLING))
    said = {name: fields[name] for name in names} if isinstance(fields, dict) else {}
    low = isinstance(own, Url | VideoUrl) and own.detail == "low"
    if kind == "video" and low:
        raise ApiError(400, f"{where}.video_url has detail 'low', which only images may have.", param=where)
    medium = MediaWanted(kind, url or None, part.uuid, options.of(kind, options_from(said, names, where)), low_detail=low)
    wanted.append(medium)
    return {"type": kind, kind: medium}


def _embeddings(given: Embeddings, where: str) -> ImageEmbeddings:
    try:
        data = pybase64.b64decode(given.data, validate=True)
    except ValueError as error:
        raise ApiError(400, f"{where}.image_embeds.data is no base64: {error}.", param=where) from None
    rows, embedding_width = given.shape
    return ImageEmbeddings(data, given.dtype, (rows, embedding_width), given.width, given.height)


async def _load_all(context: ServerContext, draft: PromptDraft, caller: str, entry: Entry) -> list[list[MediaRef]]:
    """Bytes, digest and header of each medium, side by side. The first that cannot be had ends the loading of the others."""
    wanted, clock = draft.wanted, draft.clock
    clocks = [StageClock() for _ in wanted]  # each is used in a thread
    limits = context.config.media
    most = int((limits.max_request_media_mb + context.config.server.max_request_mb) * MB)

    async def room_for(count: int) -> None:
        await entry.grow(count, most)

    loader = AsyncLoader(limits, LOOK_UPS.resolver(caller), draft.budget, context.pool, room_for, draft.known)

    async def one(medium: MediaWanted, own: StageClock) -> list[MediaRef]:
        if medium.url is None:
            assert medium.uuid is not None and medium.kind != "pdf"
            return [context.names.recall(caller, medium.kind, medium.uuid)]
        return await loader.load(medium.kind, medium.url, own, medium.name)

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


def _build(
    context: ServerContext, draft: PromptDraft, refs: Sequence[Sequence[MediaRef]], seconds: float | None = None
) -> ChatPrompt:
    """All that follows when the media are there; fit for any thread. `seconds` are what the template may take."""
    prompts, tools = context.prompts, list(draft.tools) or None
    with draft.clock.stage("prompt"):
        pages = {id(medium): found for medium, found in zip(draft.wanted, refs, strict=True)}
        messages = with_pages(draft.messages, lambda medium, _: pages[id(medium)])
        prompt, _ = prompts.render(
            marked(messages) if draft.continues else messages, tools, draft.chat_template_kwargs, seconds
        )
        prompt = cut(prompt) if draft.continues else prompt
        processor = prompts.processor.with_images(sum(ref.kind == "image" for found in refs for ref in found))
        items = [
            make_item(ref, processor, draft.budget, sized(processor, medium))
            for medium, found in zip(draft.wanted, refs, strict=True)
            for ref in found
        ]
        return ChatPrompt(prompts.assemble(prompt, items), opens_reasoning(prompt))


def sized(processor: ProcessorSpec, medium: MediaWanted) -> MediaOptions:
    """What the request says of a medium. With low detail an image has fewer pixels, not fewer than the least."""
    options, spec = medium.options, processor.image
    if not medium.low_detail:
        return options
    least = spec.min_pixels if options.min_pixels is None else options.min_pixels
    most = spec.max_pixels if options.max_pixels is None else options.max_pixels
    return dataclasses.replace(options, max_pixels=max(least, min(most, LOW_DETAIL_ROWS * spec.factor**2)))
