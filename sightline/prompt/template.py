"""Chat templates: a checkpoint's Jinja source, rendered in a sandbox with the settings that Hugging Face templates assume.

A template is foreign code that arrives with a checkpoint, so it runs immutable, sandboxed and within a budget
(template_budget.py), and whatever it raises reaches the user as one sentence.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError

from sightline.errors import PromptError
from sightline.json_files import read_json
from sightline.prompt.template_budget import MOST_SOURCE, RenderBudget, TemplateBudgetError, spending
from sightline.prompt.template_sandbox import BudgetEnvironment
from sightline.prompt.tokenizer import special_token_names
from sightline.types import CallForm, Message


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}` marks what an assistant said, for training; here the body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012  (declared by the base class)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which a model would read as they stand.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> BudgetEnvironment:
    environment = BudgetEnvironment(
        {"tojson": tojson}, trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled template. `origin` names it where it is no template; later errors go to clients, who need not know of our
    folders. `constants` are variables it always sees, such as eos_token."""

    def __init__(self, source: str, origin: str = "The chat template", constants: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.constants = dict(constants or {})
        environment = _environment()
        if len(source) > MOST_SOURCE:
            raise PromptError(f"{origin} has {len(source):,} characters; the most are {MOST_SOURCE:,}.")
        try:
            self._template = spending(RenderBudget(()), lambda: environment.from_string(source))
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateSyntaxError as error:
            raise PromptError(f"{origin} does not parse at line {error.lineno}: {error.message}") from error

    @classmethod
    def from_folder(cls, path: str | Path) -> "ChatTemplate":
        """The template of a checkpoint folder: chat_template.jinja, else chat_template.json, else tokenizer_config.json."""
        folder = Path(path)
        text_file = folder / "chat_template.jinja"
        if text_file.is_file():
            return cls.from_file(text_file, folder)
        constants = special_token_names(folder)
        for name in ("chat_template.json", "tokenizer_config.json"):
            if not (folder / name).is_file():
                continue
            template = read_json(folder / name).get("chat_template")
            if template is not None:
                return cls(_default_template(template, folder / name), f"The chat template in {folder / name}", constants)
        raise PromptError(
            f"{folder} has no chat template: neither chat_template.jinja nor a chat_template in chat_template.json "
            "or tokenizer_config.json."
        )

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Whether `from_folder` finds one."""
        named = (folder / "chat_template.json", folder / "tokenizer_config.json")
        return (folder / "chat_template.jinja").is_file() or any(
            file.is_file() and read_json(file).get("chat_template") is not None for file in named
        )

    @classmethod
    def from_file(cls, file: Path, folder: Path) -> "ChatTemplate":
        """The template of a text file, for the checkpoint in a folder."""
        return cls(_read_text(file), f"The chat template {file}", special_token_names(folder))

    @property
    def call_form(self) -> CallForm:
        """How the model is told to write calls of tools: with tags <function=…> and <parameter=…>, <arg_key>, or as JSON."""
        if "<function=" in self.source and "<parameter=" in self.source:
            return "xml"
        return "glm" if "<arg_key>" in self.source and "<arg_value>" in self.source else "json"

    def render(
        self,
        messages: Sequence[Message],
        seconds: float | None = None,
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,  # of any name: "self" too
    ) -> str:
        """The prompt for these messages. Tools and calls of them are refused where the template would leave them out unsaid.

        `seconds` are all that it may take; by default as many as messages of this size explain.
        """
        if tools and "tools" not in self.variables:
            raise PromptError(f"The chat template has no place for tools, and {len(tools)} were given.")
        if "tool_calls" not in self.source:
            for index, message in enumerate(messages):
                if message.get("tool_calls"):
                    raise PromptError(f"The chat template has no place for tool_calls, and messages[{index}] has them.")
        variables = {**self.constants, "documents": None, **template_kwargs}
        variables |= {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        budget = RenderBudget((messages, tools, template_kwargs), seconds)
        try:
            return spending(budget, functools.partial(self._template.render, variables))
        except (TemplateBudgetError, MemoryError):
            raise
        except SecurityError as error:
            raise PromptError(f"The chat template tried what the sandbox forbids: {error}") from error
        except jinja2.TemplateError as error:
            raise PromptError(f"The chat template refused the messages: {error}") from error
        except Exception as error:  # foreign code: any operation in it may fail in its own way
            raise PromptError(f"The chat template failed on the messages with {type(error).__name__}: {error}") from error


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{file} cannot be read: {error}") from error


def _default_template(template: Any, file: Path) -> str:
    """A template is a string, or a list of {name, template} of which the one called "default" is for chat."""
    if isinstance(template, str):
        return template
    if isinstance(template, list):
        for entry in template:
            if isinstance(entry, dict) and entry.get("name") == "default" and isinstance(entry.get("template"), str):
                return str(entry["template"])
        raise PromptError(f'{file} has a list of chat templates, none of them named "default".')
    raise PromptError(f"{file} has a chat_template that is neither a string nor a list but {type(template).__name__}.")


def opens_reasoning(prompt: str) -> bool:
    """Whether a template's prompt ends inside a block of reasoning, so that the answer begins in it."""
    return prompt.rstrip().endswith("<think>")
