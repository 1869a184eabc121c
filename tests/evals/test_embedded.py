"""The model that comes with the package: transformers reads it and says the same, token by token, and it does see."""

import pytest
import torch

from file_patches import make_patches
from oracle import Oracle, oracle
from sightline import LLM, SamplingParams
from sightline.evals.signs import SKILL_NAMES, make_example
from sightline.evals.signs.conversation import Conversation, conversations
from sightline.evals.signs.evaluate import evaluate
from sightline.evals.signs.optimisations import OPTIMISATIONS
from sightline.models.locate import EMBEDDED


def questions(count: int, first: int = 50_000) -> list[tuple[str, Conversation]]:
    """(skill, conversation) of held-out scenes, all skills in turn, clips among them."""
    found = []
    for seed in range(first, first + count):
        skill = SKILL_NAMES[seed % len(SKILL_NAMES)]
        found.append((skill, conversations(make_example(seed, "heldout", skill))[0]))
    return found


def reference_tokens(reference: Oracle, llm: LLM, conversation: Conversation, count: int) -> list[int]:
    """What transformers says: by its own processor for images; for a clip, its model on our ids and positions and its tower
    on our patches, because its processor samples and resizes clips in its own way."""
    parts = conversation[0]["content"]
    if all(part["type"] != "video" for part in parts):
        return reference.greedy(reference.inputs(conversation), count)
    request = llm.prompts.chat(conversation)
    (item,) = request.items
    patches = make_patches(item, llm.processor.video, torch.device("cpu"), torch.float32, compact=False)
    rows = reference.rows(patches, torch.tensor([item.grid]))
    return reference.greedy_for_request(request, rows, count)


def check_agreement(count: int) -> None:
    reference = oracle(EMBEDDED, "qwen3-vl")
    asked = questions(count)
    with LLM(device="cpu", dtype="float32", kv_cache_gb=0.1, embedding_cache_gb=0.05) as llm:
        ours = llm.chat([conversation for _, conversation in asked], SamplingParams(max_tokens=24, temperature=0))
        ends = {llm.tokenizer.id_of(name) for name in ("<|im_end|>", "<|endoftext|>")}
        for (skill, conversation), answer in zip(asked, ours, strict=True):
            theirs = reference_tokens(reference, llm, conversation, 24)
            length = next((n + 1 for n, token in enumerate(theirs) if token in ends), 24)
            assert list(answer.token_ids) == theirs[:length], (skill, conversation[0]["content"][-1])


def test_transformers_says_the_same() -> None:
    """Red when prompt, preprocessing, model or engine differ from transformers on trained weights."""
    check_agreement(24)


@pytest.mark.slow
def test_transformers_says_the_same_200_times() -> None:
    check_agreement(200)


def test_long_answers_are_the_same() -> None:
    """256 tokens, past the end of every answer: a difference that grows from step to step would show."""
    reference = oracle(EMBEDDED, "qwen3-vl")
    asked = questions(4, 55_000)
    sampling = SamplingParams(max_tokens=256, temperature=0, ignore_eos=True)
    with LLM(device="cpu", dtype="float32", kv_cache_gb=0.1, embedding_cache_gb=0.05) as llm:
        ours = llm.chat([conversation for _, conversation in asked], sampling)
        for (skill, conversation), answer in zip(asked, ours, strict=True):
            assert list(answer.token_ids) == reference_tokens(reference, llm, conversation, 256), skill


def test_it_sees() -> None:
    """Nearly all of a few held-out scenes of each skill. Red when the weights or the way to them break."""
    with LLM(device="cpu", kv_cache_gb=0.1, embedding_cache_gb=0.05) as llm:
        report = evaluate(llm, samples=12, seed=0, batch=36)
    for score in report.scores:
        assert score.accuracy >= 0.9, score


@pytest.mark.slow
def test_it_sees_as_well_as_its_card_says() -> None:
    """What the model was asked to reach, by 150 examples of each skill."""
    wanted = {"sign": 0.95, "phone": 0.93, "colour": 0.98, "shape": 0.98, "count": 0.95, "two_images": 0.9, "video": 0.85}
    with LLM(device="cpu", kv_cache_gb=0.1, embedding_cache_gb=0.05) as llm:
        report = evaluate(llm, samples=150, skills=tuple(wanted), seed=1000, batch=64)
    for score in report.scores:
        assert score.accuracy >= wanted[score.skill], score


MORE = ({"page_size": 64}, {"embedding_host_cache_gb": 0.01}, {"max_patches_per_step": 64, "lookahead_patches": 0})


@pytest.mark.parametrize("settings", [*(settings for _, settings in OPTIMISATIONS[1:]), *MORE], ids=str)
def test_answers_do_not_depend_on_optimisations(settings: dict[str, object]) -> None:
    """Every optimisation on and off gives the same answers from real weights."""
    asked = [conversation for _, conversation in questions(18, 60_000)]
    answers = []
    for chosen in ({}, settings):
        with LLM(device="cpu", dtype="float32", kv_cache_gb=0.1, embedding_cache_gb=0.05, **chosen) as llm:
            answers.append([answer.token_ids for answer in llm.chat(asked, SamplingParams(max_tokens=16, temperature=0))])
    assert answers[0] == answers[1]


def test_it_fits_its_limits() -> None:
    """Files below 16 MB, at most 24 MB of weights, every file of an ordinary checkpoint and a card."""
    weights = list(EMBEDDED.glob("*.safetensors"))
    assert all(file.stat().st_size < 16_000_000 for file in weights)
    assert sum(file.stat().st_size for file in weights) <= 24_000_000
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json", "chat_template.jinja", "README.md"):
        assert (EMBEDDED / name).is_file()
