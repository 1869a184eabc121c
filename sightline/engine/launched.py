"""A step that the device works on, and what is read from it."""

from dataclasses import dataclass

from sightline.engine.answers import Answer
from sightline.engine.stage_times import DeviceTime
from sightline.run.readout import Readout
from sightline.run.sampler import Sampled
from sightline.schedule.state import Step
from sightline.types import TokenLogprob


@dataclass(frozen=True)
class Launched:
    step: Step
    readout: Readout
    answers: list[Answer]  # of the chunks that sample, in order
    times: list[DeviceTime]  # known when it is done

    @property
    def ready(self) -> bool:
        return self.readout.ready

    @property
    def may_stay(self) -> bool:
        """Whether the next step can be launched before these tokens are known to the host."""
        return not any(answer.row.needs_known_tokens for answer in self.answers)

    def read(self) -> tuple[dict[int, int], dict[int, TokenLogprob]]:
        """Tokens, and log-probabilities where asked for, by sequence id. Waits for the device, and tells the clocks."""
        sampled = self.readout.read()
        for time in self.times:
            time.tell()
        ids = sampled.token_ids.tolist()
        tokens = {answer.sequence.id: token for answer, token in zip(self.answers, ids, strict=True)}
        return tokens, _read_logprobs(self.answers, ids, sampled)


def _read_logprobs(answers: list[Answer], ids: list[int], sampled: Sampled) -> dict[int, TokenLogprob]:
    wanted = [number for number, answer in enumerate(answers) if answer.row.sampling.logprobs]
    if not wanted or sampled.logprobs is None:
        return {}
    chosen = sampled.logprobs.tolist()
    top_ids = sampled.top_ids.tolist() if sampled.top_ids is not None else [[]] * len(ids)
    top = sampled.top_logprobs.tolist() if sampled.top_logprobs is not None else [[]] * len(ids)
    found = {}
    for number in wanted:
        count = answers[number].row.sampling.top_logprobs
        best = tuple(zip(top_ids[number][:count], top[number][:count], strict=True))
        found[answers[number].sequence.id] = TokenLogprob(ids[number], chosen[number], best)
    return found
