"""The model that comes with the package: transformers reads it and says the same, token by token, and it does see."""

import pytest
from PIL import Image

from oracle import oracle
from sightline import LLM, SamplingParams
from sightline.evals.signs import SKILL_NAMES, make_example
from sightline.evals.signs.evaluate import evaluate
from sightline.models.locate import EMBEDDED


def questions(count: int, first: int = 50_000) -> list[tuple[str, list[Image.Image], str]]:
    """(skill, images, question) of held-out pictures."""
    found = []
    seed = first
    while len(found) < count:
        skill = SKILL_NAMES[seed % len(SKILL_NAMES)]
        example = make_example(seed, "heldout", skill)
        seed += 1
        if example.frames is None:
            found.append((skill, [Image.fromarray(image) for image in example.images], example.turns[0].question))
    return found


def check_agreement(count: int) -> None:
    reference = oracle(EMBEDDED, "qwen3-vl")
    asked = questions(count)
    turns = [
        [{"role": "user", "content": [*({"type": "image", "image": i} for i in images), {"type": "text", "text": question}]}]
        for _, images, question in asked
    ]
    with LLM(device="cpu", dtype="float32", kv_cache_gb=0.1, embedding_cache_gb=0.05) as llm:
        ours = llm.chat(turns, SamplingParams(max_tokens=24, temperature=0))
    ends = {llm.tokenizer.id_of(name) for name in ("<|im_end|>", "<|endoftext|>")}
    for (skill, _, question), turn, answer in zip(asked, turns, ours, strict=True):
        theirs = reference.greedy(reference.inputs(turn), 24)
        length = next((n + 1 for n, token in enumerate(theirs) if token in ends), 24)
        assert list(answer.token_ids) == theirs[:length], (skill, question)


def test_transformers_says_the_same() -> None:
    """Red when prompt, preprocessing, model or engine differ from transformers on trained weights."""
    check_agreement(24)


@pytest.mark.slow
def test_transformers_says_the_same_200_times() -> None:
    check_agreement(200)


def test_it_sees() -> None:
    """Far above chance on held-out scenes: random weights give about nothing. Red when the weights or the way to them break."""
    with LLM(device="cpu", kv_cache_gb=0.1, embedding_cache_gb=0.05) as llm:
        report = evaluate(llm, samples=30, skills=("sign", "video"), seed=0, batch=30)
    right = {score.skill: score.accuracy for score in report.scores}
    assert right["sign"] > 0.15 and right["video"] > 0.5


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 24},
        {"max_patches_per_step": 64, "lookahead_patches": 0},
        {"page_size": 64},
        {"embedding_host_cache_gb": 0.01},
    ],
    ids=str,
)
def test_answers_do_not_depend_on_optimisations(settings: dict[str, object]) -> None:
    """Every optimisation on and off gives the same answers from real weights."""
    turns = [
        [{"role": "user", "content": [*({"type": "image", "image": i} for i in images), {"type": "text", "text": question}]}]
        for _, images, question in questions(16, 60_000)
    ]
    answers = []
    for chosen in ({}, settings):
        with LLM(device="cpu", dtype="float32", kv_cache_gb=0.1, embedding_cache_gb=0.05, **chosen) as llm:
            answers.append([answer.token_ids for answer in llm.chat(turns, SamplingParams(max_tokens=16, temperature=0))])
    assert answers[0] == answers[1]


def test_it_fits_its_limits() -> None:
    """Files below 16 MB, at most 24 MB of weights, every file of an ordinary checkpoint and a card."""
    weights = list(EMBEDDED.glob("*.safetensors"))
    assert all(file.stat().st_size < 16_000_000 for file in weights)
    assert sum(file.stat().st_size for file in weights) <= 24_000_000
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json", "chat_template.jinja", "README.md"):
        assert (EMBEDDED / name).is_file()
