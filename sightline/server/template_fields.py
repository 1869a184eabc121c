"""Fields of a chat that its template honours, or nobody: effort, verbosity, and where the prompt ends."""

from typing import Any

from sightline.prompt.template import ChatTemplate
from sightline.server.errors import ApiError
from sightline.server.protocol import AssistantMessage, ChatRequest, Message, TextPart, TokenizeRequest


def template_kwargs(template: ChatTemplate, body: ChatRequest | TokenizeRequest) -> dict[str, Any] | None:
    """chat_template_kwargs with what other fields of the body ask of the template."""
    found = dict(body.chat_template_kwargs or {})
    if isinstance(body, ChatRequest):
        found |= _effort(template, body.reasoning_effort) | _verbosity(template, body.verbosity)
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise ApiError(
                400,
                "continue_final_message and add_generation_prompt exclude each other: a turn goes on, or the next begins.",
                param="add_generation_prompt",
            )
        found["add_generation_prompt"] = False
    elif body.add_generation_prompt is not None:
        found["add_generation_prompt"] = body.add_generation_prompt
    return found or body.chat_template_kwargs


def thinking(template: ChatTemplate, wanted: bool) -> dict[str, Any]:
    """What makes a template think, or not: nothing where it has no switch for it."""
    return {"enable_thinking": wanted} if "enable_thinking" in template.variables else {}


def _effort(template: ChatTemplate, effort: str | None) -> dict[str, Any]:
    if effort is None:
        return {}
    if "reasoning_effort" in template.variables:
        return {"reasoning_effort": effort}
    switch = thinking(template, False)
    if effort == "none" and (switch or "<think>" not in template.source):
        return switch
    instead = 'use chat_template_kwargs with "enable_thinking"' if switch else "leave it out"
    raise ApiError(
        400,
        f"reasoning_effort is {effort!r}, which the model's chat template does not know; {instead}.",
        param="reasoning_effort",
        code="unsupported_value",
    )


def _verbosity(template: ChatTemplate, verbosity: str | None) -> dict[str, Any]:
    if verbosity is not None and "verbosity" in template.variables:
        return {"verbosity": verbosity}
    if verbosity in (None, "medium"):
        return {}
    raise ApiError(
        400,
        f"verbosity is {verbosity!r}, which the model's chat template does not know; ask for it in the system message.",
        param="verbosity",
        code="unsupported_value",
    )


def final_text(messages: list[Message]) -> str:
    """The text that an answer goes on from, where the last message is to be continued."""
    last = messages[-1] if messages else None
    if not isinstance(last, AssistantMessage) or last.content is None or last.tool_calls:
        raise ApiError(
            400,
            "The last message cannot be continued: it must be the assistant's, with a text and without calls.",
            param="continue_final_message",
        )
    if isinstance(last.content, str):
        return last.content
    return "".join(part.text for part in last.content if isinstance(part, TextPart))
