"""Reading a checkpoint's JSON strictly: each field is taken, checked or known to be harmless, and what is left is an error.

A field that nobody reads could change the numbers without anybody noticing, so `done()` refuses it by name.
"""

from collections.abc import Mapping
from typing import Any

from sightline.errors import ConfigError

# Written by transformers into every config; none of them changes what a forward pass computes.
HARMLESS = frozenset(
    """_name_or_path _attn_implementation_autoset _from_model_config add_cross_attention architectures attention_dropout
    bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id hidden_dropout_prob id2label initializer_range is_decoder
    is_encoder_decoder label2id length_penalty max_length min_length model_type no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix problem_type pruned_heads
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript
    transformers_version typical_p use_bfloat16 use_cache""".split()
)
_MISSING: Any = object()


class Fields:
    """One JSON object of a config file; remembers which fields were read."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.name = name
        self._values = dict(values)
        self._read: set[str] = set()

    def __contains__(self, field: str) -> bool:
        return self._values.get(field) is not None

    def supply(self, values: Mapping[str, Any]) -> None:
        """Values of fields that are absent, known from elsewhere."""
        self._values |= {field: value for field, value in values.items() if field not in self}

    def take(self, field: str, default: Any = _MISSING) -> Any:
        """The field's value; null counts as absent. Without a default an absent field is an error."""
        self._read.add(field)
        value = self._values.get(field)
        if value is not None:
            return value
        if default is _MISSING:
            raise ConfigError(f"{self.name} has no field '{field}'.")
        return default

    def integer(self, field: str, default: Any = _MISSING) -> int:
        value = self.take(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ConfigError(f"{self.name}: '{field}' is {value!r}, but must be a whole number above 0.")
        return value

    def token(self, field: str, default: Any = _MISSING) -> int:
        value = self.take(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{self.name}: '{field}' is {value!r}, but must be a token id.")
        return value

    def number(self, field: str, default: Any = _MISSING) -> float:
        value = self.take(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.name}: '{field}' is {value!r}, but must be a number.")
        return float(value)

    def flag(self, field: str, default: Any = _MISSING) -> bool:
        value = self.take(field, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.name}: '{field}' is {value!r}, but must be true or false.")
        return value

    def integers(self, field: str, default: Any = _MISSING) -> tuple[int, ...]:
        value = self.take(field, default)
        if not isinstance(value, list | tuple) or any(isinstance(x, bool) or not isinstance(x, int) for x in value):
            raise ConfigError(f"{self.name}: '{field}' is {value!r}, but must be a list of whole numbers.")
        return tuple(value)

    def numbers(self, field: str, default: Any = _MISSING) -> tuple[float, ...]:
        value = self.take(field, default)
        if not isinstance(value, list | tuple) or any(isinstance(x, bool) or not isinstance(x, int | float) for x in value):
            raise ConfigError(f"{self.name}: '{field}' is {value!r}, but must be a list of numbers.")
        return tuple(float(x) for x in value)

    def section(self, field: str, default: Any = _MISSING) -> "Fields":
        value = self.take(field, default)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self.name}: '{field}' is {value!r}, but must be an object.")
        return Fields(value, f"{self.name} {field}")

    def must_be(self, field: str, *allowed: Any) -> None:
        """The field, if it is there, has one of these values: the only ones this family's code computes with."""
        value = self.take(field, None)
        if value is not None and value not in allowed:
            wanted = " or ".join(repr(x) for x in allowed)
            raise ConfigError(f"{self.name}: '{field}' is {value!r}, but only {wanted} is supported.")

    def ignore(self, *fields: str) -> None:
        """These fields do not change the numbers here."""
        self._read.update(fields)

    def ignore_repeated(self, inner: "Fields") -> None:
        """Fields that also stand in `inner`, with the same value."""
        for field, value in self._values.items():
            other = inner._values.get(field)
            if value is None or other is None or field in HARMLESS or field == "tie_word_embeddings":  # read_tie compares it
                continue
            if value != other:
                raise ConfigError(
                    f"{self.name} contradicts itself: '{field}' is {value!r} there and {other!r} in {inner.name}."
                )
            self._read.add(field)

    def done(self) -> None:
        left = sorted(name for name in set(self._values) - self._read - HARMLESS if self._values[name] is not None)
        if left:
            raise ConfigError(f"{self.name} has a field that is not understood and could change the numbers: '{left[0]}'.")
