"""Templates: our own against fixed strings and against the real ones; the environment against transformers'."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from assets import asset
from prompt.builders import own_template
from sightline.config import MediaConfig, ModelConfig
from sightline.errors import ConfigError, PromptError
from sightline.models.files import read_model_files
from sightline.prompt.template import ChatTemplate

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter <für> & «Ort»",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "time", "parameters": {}}},
]
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


CHATS: dict[str, list[dict[str, Any]]] = {
    "string": [{"role": "user", "content": "Hello"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    "system in parts": [{"role": "system", "content": [text("Be "), text("brief.")]}, {"role": "user", "content": "Hello"}],
    "image": [user(IMAGE, text("What is this?"))],
    "image last": [user(text("What is this?"), IMAGE)],
    "several": [user(IMAGE, IMAGE, text("and"), VIDEO, text("then"), VIDEO, IMAGE)],
    "no text": [user(IMAGE)],
    "empty": [{"role": "user", "content": ""}, {"role": "assistant", "content": []}],
    "turns": [
        {"role": "system", "content": "S"},
        user(IMAGE, text("one")),
        {"role": "assistant", "content": "An answer."},
        user(text("two"), VIDEO, IMAGE),
        {"role": "assistant", "content": [text("Another "), text("answer.")]},
        {"role": "user", "content": "three"},
    ],
    "unicode": [
        {"role": "user", "content": "日本語 🦙 e\u0301 <b>&amp;</b> {{ x }} {% if %}\n\n  \t"},
        user(text(" \n«ü»\n ")),
    ],
    "spaces": [user(text("  lead"), IMAGE, text("\n\ntrail  \n"))],
}
TOOL_CHATS: dict[str, list[dict[str, Any]]] = {
    "call": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"place": "Zürich"}}}],
        },
        {"role": "tool", "content": "sunny"},
    ],
    "calls": [
        {"role": "system", "content": "S"},
        user(IMAGE, text("Weather?")),
        {
            "role": "assistant",
            "content": "I will look.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"place":  "Bern"}'}},
                {"name": "time", "arguments": {}},
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "1"},
        {"role": "tool", "content": [text("a picture: "), IMAGE, VIDEO]},
        {"role": "assistant", "content": "Sunny."},
        user(text("And now?"), IMAGE),
    ],
    "tool first": [{"role": "tool", "content": "r"}, {"role": "tool", "content": "s"}, {"role": "user", "content": "u"}],
}
GLM_CHATS: dict[str, list[dict[str, Any]]] = {
    "thoughts": [
        {"role": "user", "content": "a/nothink"},
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nb"},
        {"role": "user", "content": "a/nothink"},
        {"role": "assistant", "content": "<think>\nnew\n</think>\nc\n"},
        {"role": "assistant", "content": "d", "reasoning_content": " e "},
        {"role": "assistant", "content": "<think>f</think>"},
    ],
    "results": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "x"},
        {"role": "tool", "content": "r"},
        {"role": "tool", "content": "s"},
        {"role": "user", "content": "v"},
        {"role": "tool", "content": [text("a picture: "), IMAGE, VIDEO]},
    ],
}


def own(family: str) -> ChatTemplate:
    return ChatTemplate(own_template(family))


def real(model: str) -> ChatTemplate:
    return ChatTemplate.from_folder(asset(f"configs/{model}"))


# --- our own templates against fixed strings ---


def test_own_qwen2_5_fixed() -> None:
    """Red if the default system turn, a role line, an end mark, the numbering or the generation prompt changes."""
    prompt = own("qwen2.5-vl").render(
        [user(IMAGE, text("a"), VIDEO, IMAGE), {"role": "assistant", "content": "b"}], add_vision_id=True
    )
    assert prompt == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nPicture 1: <|vision_start|><|image_pad|><|vision_end|>a"
        "Video 1: <|vision_start|><|video_pad|><|vision_end|>Picture 2: <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_own_qwen3_fixed() -> None:
    """Red if tools leave the system turn, a call's JSON is escaped or reformatted, or tool results stop sharing a turn."""
    prompt = own("qwen3-vl").render(TOOL_CHATS["calls"], tools=TOOLS[1:], add_generation_prompt=False)
    assert prompt == (
        "<|im_start|>system\nS\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "time", "parameters": {}}}\n</tools>\n\n'
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Weather?<|im_end|>\n"
        '<|im_start|>assistant\nI will look.\n<tool_call>\n{"name": "weather", "arguments": {"place":  "Bern"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
        "<tool_response>\na picture: <|vision_start|><|image_pad|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>\n"
        "</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nSunny.<|im_end|>\n"
        "<|im_start|>user\nAnd now?<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
    )


def test_own_glm_fixed() -> None:
    """Red if the prefix, a role line, the media triplets or the generation prompt of GLM changes."""
    chat = [
        {"role": "system", "content": "S"},
        user(IMAGE, text("a"), VIDEO),
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert own("glm-4.1v").render(chat) == (
        "[gMASK]<sop><|system|>\nS<|user|>\n<|begin_of_image|><|image|><|end_of_image|>a<|begin_of_video|><|video|><|end_of_video|>"
        "<|assistant|>\nb<|user|>\nc<|assistant|>\n"
    )
    assert own("glm-4.1v").render(chat[1:2], add_generation_prompt=False).endswith("<|end_of_video|>")


# --- our own templates against the real ones ---


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("add_vision_id", [True, False])
@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize(("family", "model"), [("qwen2.5-vl", "Qwen2.5-VL-7B-Instruct"), ("qwen3-vl", "Qwen3-VL-8B-Instruct")])
def test_own_equals_real(family: str, model: str, name: str, add_vision_id: bool, add_generation_prompt: bool) -> None:
    """Red on any difference of output between our template and the published one."""
    options = {"add_vision_id": add_vision_id, "add_generation_prompt": add_generation_prompt}
    assert own(family).render(CHATS[name], **options) == real(model).render(CHATS[name], **options)


@pytest.mark.parametrize(
    "options", [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"add_generation_prompt": False}]
)
@pytest.mark.parametrize("name", [*CHATS, "thoughts", "results"])
def test_own_glm_4_6v_equals_its_sister(name: str, options: dict[str, Any]) -> None:
    """Red on any difference from GLM-OCR's template, which has the same processor; GLM-4.6V's own was not to be had."""
    chat = (CHATS | GLM_CHATS)[name]
    assert own("glm-4.6v-flash").render(chat, **options) == real("GLM-OCR").render(chat, **options)


THOUGHTFUL_CHATS: dict[str, list[dict[str, Any]]] = {
    "thoughts": [
        {"role": "user", "content": " a "},
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "<think>\nnew\n</think>\n\n d\n"},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "e", "reasoning_content": " f "},
    ],
    "values": [
        {"role": "system", "content": " "},
        user(text("Weather?"), VIDEO, IMAGE),
        {
            "role": "assistant",
            "content": " ",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "function": {
                        "name": "f",
                        "arguments": {"a": "x <y>\nz", "b": [1, "é"], "c": {"d": None}, "e": True, "g": 1.5},
                    }
                },
                {"function": {"name": "g", "arguments": {}}},
                {"function": {"name": "h"}},
            ],
        },
        {"role": "tool", "content": [text("a "), IMAGE]},
        {"role": "tool", "content": "s"},
        {"role": "user", "content": "<tool_response>\nasked by hand\n</tool_response>"},
        {"role": "assistant", "content": None},
    ],
    "refused: two systems": [{"role": "user", "content": "u"}, {"role": "system", "content": "s"}],
    "refused: picture of the system": [{"role": "system", "content": [IMAGE]}, {"role": "user", "content": "u"}],
    "refused: role": [{"role": "user", "content": "u"}, {"role": "developer", "content": "s"}],
    "refused: nobody asks": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}],
    "refused: part": [{"role": "user", "content": [{"type": "audio"}]}],
    "refused: nothing": [],
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_thinking": False},
        {"enable_thinking": True, "tools": TOOLS},
        {"add_vision_id": True, "add_generation_prompt": False},
    ],
)
@pytest.mark.parametrize("name", [*CHATS, *TOOL_CHATS, *THOUGHTFUL_CHATS])
def test_own_qwen3_5_equals_real(name: str, options: dict[str, Any]) -> None:
    """Red on any difference from the published template: what it writes, and what it refuses."""
    chat = (CHATS | TOOL_CHATS | THOUGHTFUL_CHATS)[name]
    found = []
    for template in (own("qwen3.5"), real("Qwen3.5-27B")):
        try:
            found.append(template.render(chat, **options))
        except PromptError as error:
            found.append(f"refused: {error}")
    assert found[0] == found[1]
    assert found[0].startswith("refused: ") or not name.startswith("refused")


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("name", [*TOOL_CHATS, "system", "turns", "unicode"])
def test_own_qwen3_equals_real_with_tools(name: str, tools: Any) -> None:
    """Red on any difference in how tools, calls and results are written."""
    chat = (CHATS | TOOL_CHATS)[name]
    assert own("qwen3-vl").render(chat, tools=tools) == real("Qwen3-VL-8B-Instruct").render(chat, tools=tools)


# --- the environment against transformers' ---

ENVIRONMENT_CASES = {
    "trimmed blocks": "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\nend",
    "tojson": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true) }}",
    "loop controls": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}"
    ),
    "generation": (
        "{% for m in messages %}\n{% generation %}\n{% set x = m.content %}{{ loop.index }}{{ x }}\n"
        "{% endgeneration %}{{ x }}{% endfor %}"
    ),
    "special names": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ documents is none }}|{{ unk_token is defined }}",
    "clock": "{{ strftime_now('%Y-%m-%d') }}",
}


@pytest.mark.parametrize("name", ENVIRONMENT_CASES)
def test_environment_renders_as_transformers(name: str, tmp_path: Path) -> None:
    """Red if trim_blocks, lstrip_blocks, an extension, the tojson filter or a template variable is set up differently."""
    from prompt.builders import byte_tokenizer
    from prompt.oracle import transformers

    source = ENVIRONMENT_CASES[name]
    byte_tokenizer(tmp_path, "qwen3-vl")
    (tmp_path / "chat_template.jinja").write_text(source)
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "ü <b>\n"}]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert ChatTemplate.from_folder(tmp_path).render(chat) == theirs
    if name == "clock":
        assert theirs == datetime.now().strftime("%Y-%m-%d")


@pytest.mark.parametrize("model", ["Qwen2.5-VL-7B-Instruct", "Qwen3-VL-8B-Instruct", "Qwen3-VL-4B-Thinking", "Qwen3.5-27B"])
def test_real_templates_render_as_transformers(model: str, tmp_path: Path) -> None:
    """Red if a published template comes out differently from transformers' apply_chat_template."""
    from prompt.builders import byte_tokenizer
    from prompt.oracle import transformers

    byte_tokenizer(tmp_path, "qwen3-vl")
    ours = real(model)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    refused = 0
    for chat in (CHATS | TOOL_CHATS).values():
        for options in ({}, {"tools": TOOLS}, {"add_vision_id": True, "add_generation_prompt": False}):
            arguments = {"add_generation_prompt": True, **options}
            try:
                expected = theirs.apply_chat_template(chat, chat_template=ours.source, tokenize=False, **arguments)
            except Exception:  # the template's own refusal
                with pytest.raises(PromptError):
                    ours.render(chat, **arguments)
                refused += 1
                continue
            if model.startswith("Qwen2.5") and ("tools" in options or any(message.get("tool_calls") for message in chat)):
                with pytest.raises(PromptError, match="no place for tool"):  # theirs leaves them out without a word
                    ours.render(chat, **arguments)
                continue
            assert ours.render(chat, **arguments) == expected
    assert refused == 0 or model.startswith("Qwen3.5")


# --- where a template comes from ---


def test_order_of_sources(tmp_path: Path) -> None:
    """Red if a file of lower rank wins, or a list of named templates is not read."""
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "config"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "eos_token": {"content": "</s>"}}))
    assert ChatTemplate.from_folder(tmp_path).render([{}]) == "config"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json{{ eos_token }}"}))
    assert ChatTemplate.from_folder(tmp_path).render([{}]) == "json</s>"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert ChatTemplate.from_folder(tmp_path).render([{}]) == "jinja"


def test_missing_template_names_folder(tmp_path: Path) -> None:
    """Red if an absent template is not refused, or the message does not say where it was looked for."""
    with pytest.raises(PromptError, match=tmp_path.name):
        ChatTemplate.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "rag", "template": "x"}]}))
    with pytest.raises(PromptError, match="default"):
        ChatTemplate.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(PromptError, match="int"):
        ChatTemplate.from_folder(tmp_path)


# --- what a template may not do ---


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% if %}", "does not parse at line 1"),
        ("ok\n{{ x", "does not parse at line 2"),
        ("{% nonsense %}", "nonsense"),
    ],
)
def test_unparsable_template(source: str, said: str) -> None:
    """Red if Jinja's syntax errors escape as they are."""
    with pytest.raises(PromptError, match=said):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('System role comes first!') }}", "System role comes first!"),
        ("{{ messages.append(1) }}", "sandbox forbids"),
        ("{{ messages.__class__.__mro__ }}", "sandbox forbids"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "sandbox forbids"),
        ("{{ range(999999999) | list }}", "OverflowError"),
        ("{{ messages[0].nothing.more }}", "nothing"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for x in none %}{% endfor %}", "TypeError"),
        ("{{ messages[0].x + 1 }}", "refused"),
    ],
)
def test_failing_template(source: str, said: str) -> None:
    """Red if something a template does escapes as another exception, succeeds, loses its reason, or tells clients our paths."""
    with pytest.raises(PromptError, match=said) as caught:
        ChatTemplate(source, "The chat template /models/m/chat_template.jinja").render([{"role": "user", "content": "x"}])
    assert str(caught.value).startswith("The chat template ") and "/models" not in str(caught.value)


def test_tools_are_refused_where_they_would_be_dropped() -> None:
    """Red if a template without a place for tools or their calls renders anyway."""
    with pytest.raises(PromptError, match="no place for tools, and 2 were given"):
        own("qwen2.5-vl").render(CHATS["string"], tools=TOOLS)
    with pytest.raises(PromptError, match=r"no place for tool_calls, and messages\[1\]"):
        own("glm-4.1v").render(TOOL_CHATS["call"])


def test_a_file_instead_of_the_checkpoints_template(tmp_path: Path) -> None:
    """Red when --chat-template is ignored, or when its variables are not those of the checkpoint."""
    template = tmp_path / "own.jinja"
    template.write_text("own {{ eos_token }}")
    files = read_model_files(ModelConfig(chat_template=str(template)), MediaConfig())
    plain = read_model_files(ModelConfig(), MediaConfig())
    assert files.template.render([{}]) == f"own {plain.template.constants['eos_token']}"
    assert files.prompt_builder(MediaConfig()).template is files.template
    with pytest.raises(ConfigError, match="chat_template is 'chatml', but there is no such file"):
        read_model_files(ModelConfig(chat_template="chatml"), MediaConfig())
