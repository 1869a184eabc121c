"""The embedded model's tokenizer: byte-level BPE of some two thousand tokens, with Qwen's special tokens behind them.

Merges come from the questions and answers of the generator; letters and digits of signs stay single tokens mostly, because
random strings are not in that text.
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from sightline.evals.signs.generate import make_example
from sightline.models.families.qwen3_vl import FAMILY
from sightline.prompt.byte_tokenizer import VISIBLE

VOCABULARY = 2048
# As the published Qwen tokenizers split: contractions, words with a leading space, single digits, punctuation, white space.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT_SKILLS = ("colour", "shape", "count", "locate", "chart", "two_images", "video")


def make_tokenizer(folder: Path, examples: int = 800) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    names = FAMILY.special_tokens.names
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(names), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=5
    )
    corpus = []
    for seed in range(examples):
        for skill in ("sign", "phone", *TEXT_SKILLS):
            example = make_example(seed, "train", skill)
            for turn in example.turns:
                corpus.append(turn.question)
                if skill in TEXT_SKILLS:
                    corpus.append(turn.answer)
    tokenizer.train_from_iterator(corpus, trainer)
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(name, special=name not in VISIBLE, normalized=False) for name in names])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
