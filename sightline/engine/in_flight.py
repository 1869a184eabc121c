"""A step that was submitted, and what its output means to the answers in it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sightline.engine.sequence_output import SequenceOutput
from sightline.schedule.state import Step
from sightline.timing import StageClock
from sightline.types import TokenLogprob
from sightline.worker.step_input import StepOutput


@dataclass(frozen=True)
class StepInFlight:
    step: Step
    has_grammars: bool  # the next tokens of some depend on what the host makes of these
    prefilling: list[StageClock]  # of answers whose first token it brings nearer
    encoding: list[StageClock]  # of answers whose images were encoded just before it

    def tell_times(self, output: StepOutput, busy: StageClock) -> None:
        busy.add("steps", output.seconds)
        for clock in self.prefilling:
            clock.add("prefill", output.seconds)
        if output.tower_seconds:
            busy.add("tower", output.tower_seconds)
            for clock in self.encoding:
                clock.add("encode", output.tower_seconds)

    def read(
        self, output: StepOutput, answers: Mapping[int, SequenceOutput]
    ) -> tuple[dict[int, list[int]], dict[int, list[TokenLogprob]]]:
        """Sampled tokens, and log-probabilities where asked for, by sequence id: one for each of a chunk's logits."""
        tokens: dict[int, list[int]] = {}
        logprobs: dict[int, list[TokenLogprob]] = {}
        if output.token_ids is None:
            return tokens, logprobs
        ids, row = output.token_ids.tolist(), 0
        for chunk in self.step.chunks:
            if not chunk.logits:
                continue
            end = row + len(chunk.logits)
            tokens[chunk.sequence.id] = ids[row:end]
            answer = answers.get(chunk.sequence.id)
            if answer is not None and answer.sampling.logprobs:
                top = answer.sampling.top_logprobs
                logprobs[chunk.sequence.id] = [_logprob(output, ids[index], index, top) for index in range(row, end)]
            row = end
        return tokens, logprobs


def _logprob(output: StepOutput, token: int, row: int, top: int) -> TokenLogprob:
    assert output.logprobs is not None
    best: tuple[tuple[int, float], ...] = ()
    if output.top_ids is not None and output.top_logprobs is not None:
        best = tuple(zip(output.top_ids[row, :top].tolist(), output.top_logprobs[row, :top].tolist(), strict=True))
    return TokenLogprob(token, float(output.logprobs[row]), best)
