"""How many tokens of prompts, and patches of images, a step may have while others decode, so that their next tokens do not
wait longer than the target.

What steps take is learnt from those that were measured: a step of decoding alone by the number of sequences, then what each
token of a prompt and each patch adds. A prompt is cut into chunks that fit what decoding leaves of the target. Short chunks
cost throughput, for each of them decodes once. So where more waits than `DRAIN_STEPS` such steps can do, the target is
stretched until they can: the more waits, the more throughput counts. No clock here: the engine tells what it has measured.
"""

from dataclasses import dataclass, field

DEFAULT_TARGET_S = 0.025
DEFAULT_STEPS = 4.0  # the target is at least so many steps of decoding alone
DRAIN_STEPS = 4.0
LEAST_TOKENS = 128  # of prompts: less would hardly be cheaper
_WEIGHT = 0.2  # of the newest measurement
_ENOUGH = 32  # tokens or patches: what fewer take is lost in the noise
_MOST_COUNTED = 64  # sequences of the queue whose tokens count as waiting


def _mixed(old: float | None, new: float) -> float:
    """A single step that took very long, because something was compiled, counts as one of twice the usual."""
    return new if old is None else old + _WEIGHT * (min(new, 2 * old) - old)


@dataclass
class Pace:
    target_s: float | None = None  # None: the default
    exceeded: int = 0  # steps that were allowed to take longer than the target because of those that wait
    _decode_s: dict[int, float] = field(default_factory=dict)  # a step of decoding alone, by sequences as a power of two
    _token_s: float | None = None  # what a token of a prompt adds
    _patch_s: float | None = None  # and a patch in line with the step

    def note(self, decoding: int, tokens: int, seconds: float, patches: int, tower_seconds: float) -> None:
        """A step that was measured: sequences that decoded, tokens of prompts, patches that the tower had just before it."""
        if patches >= _ENOUGH and tower_seconds > 0:
            self._patch_s = _mixed(self._patch_s, tower_seconds / patches)
        if seconds <= 0:
            return
        if decoding and not tokens:
            level = decoding.bit_length()
            self._decode_s[level] = _mixed(self._decode_s.get(level), seconds)
        elif tokens >= _ENOUGH:
            own = seconds - (self._decoding(decoding) or 0.0)
            self._token_s = _mixed(self._token_s, max(own, 0.1 * seconds) / tokens)

    def tokens(self, decoding: int, backlog: int, most: int) -> int:
        """Of prompts, beside so many who decode, while `backlog` such tokens are to be computed."""
        alone = self._decoding(decoding)
        if not decoding or alone is None or not self._token_s:
            return most
        target = self._target(alone)
        stretched = alone + backlog * self._token_s / DRAIN_STEPS
        room = max(target, stretched) - alone
        allowed = max(int(room / self._token_s), LEAST_TOKENS)
        self.exceeded += min(allowed, backlog, most) * self._token_s > max(target - alone, LEAST_TOKENS * self._token_s) * 1.01
        return min(allowed, most)

    def patches(self, decoding: int, most: int) -> int:
        """In line with a step beside so many who decode; a single image that has more goes alone."""
        alone = self._decoding(decoding)
        if not decoding or alone is None or not self._patch_s:
            return most
        return min(most, int((self._target(alone) - alone) / self._patch_s))

    def _target(self, alone: float) -> float:
        return max(DEFAULT_TARGET_S, DEFAULT_STEPS * alone) if self.target_s is None else max(self.target_s, alone)

    def _decoding(self, count: int) -> float | None:
        """What a step of decoding takes: as measured for about as many, else for the nearest number."""
        if not self._decode_s or not count:
            return None
        level = count.bit_length()
        return self._decode_s[min(self._decode_s, key=lambda known: abs(known - level))]


def backlog(lengths: list[int]) -> int:
    """Tokens that wait, as far as they are counted: those of the first of the queue stand for all."""
    counted = lengths[:_MOST_COUNTED]
    return sum(counted) * len(lengths) // max(1, len(counted))
