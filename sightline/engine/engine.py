"""The engine: requests in, tokens out. `step` is the whole story; everything else prepares it or reads its results."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.cache.keys import root_key
from sightline.config import EngineConfig
from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.engine.counts import Counts
from sightline.engine.encoder import Encoder
from sightline.engine.executor import Executor
from sightline.engine.in_flight import StepInFlight
from sightline.engine.make_schedule import make_schedule
from sightline.engine.pack import pack_step
from sightline.engine.pending_grammars import PendingGrammars
from sightline.engine.sequence_output import FinishReason, SequenceOutput
from sightline.engine.stage_times import StageTimes
from sightline.errors import PromptError
from sightline.grammar.compile import Grammar
from sightline.grammar.matcher import allowed_tokens
from sightline.prompt.context_length import in_its_rope_regime, longest_answer
from sightline.prompt.tokenizer import Tokenizer
from sightline.sampling_params import UniformNumbers
from sightline.schedule.plan import plan_step, preempt
from sightline.schedule.progress import abandon_encode, admit, advance, encode_is_ready, finish, take_tokens
from sightline.schedule.rename_item import rename_item
from sightline.schedule.snapshots import give_back, keep, take_slots
from sightline.schedule.state import Sequence, Status, Step
from sightline.schedule.upcoming import needs, upcoming_items
from sightline.stream.detokenise import IncrementalText
from sightline.submission import Submission
from sightline.timing import StageClock
from sightline.types import Completion, MediaItem, Request, TokenLogprob
from sightline.worker.step_input import EncodeItem, GrammarMasks, StepInput

Drafter = Callable[[Sequence], tuple[int, ...]]  # guesses at a sequence's next tokens; they are checked, so any will do
_WAIT_S = 0.002  # for pixels, when there is nothing else to do; commands wait as long


@dataclass(frozen=True)
class Update:
    """News of one answer: more text, and at its end the whole of it, or what went wrong."""

    request_id: int
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # of these tokens, if asked for
    completion: Completion | None = None
    error: Exception | None = None

    @property
    def last(self) -> bool:
        return self.completion is not None or self.error is not None


class Engine:
    def __init__(
        self,
        executor: Executor,
        decoder: MediaDecoder,
        tokenizer: Tokenizer,
        config: EngineConfig,
        max_model_len: int,
        default_seed: int = 0,
        drafter: Drafter | None = None,
    ) -> None:
        self.executor, self.tokenizer, self.config = executor, tokenizer, config
        self.max_model_len, self.default_seed = max_model_len, default_seed
        on_gpu = executor.facts.device.startswith("cuda")
        self.schedule = make_schedule(config, executor.facts.memory, on_gpu)
        self.schedule.long_from = executor.facts.long_rope_from
        self.counts = Counts()
        self.encoder = Encoder(executor, decoder, self.schedule.embeddings, self.counts)
        self.schedule.pixels_pending = self.encoder.pixels_pending
        self.busy = StageClock()  # how long the device worked: steps, tower
        self._answers: dict[int, SequenceOutput] = {}  # by sequence id
        self._requests: dict[int, list[SequenceOutput]] = {}  # by request id
        self._pending_grammars = PendingGrammars(tokenizer)  # requests that are not in the schedule yet
        self._numbers = itertools.count()
        self._seen_changes = -1  # of the queue, when upcoming images were last looked for
        self._times = StageTimes()
        self._in_flight: deque[StepInFlight] = deque()  # submitted and not collected, in order; one while nothing overlaps
        self._idle = False  # the last plan was empty
        self._overlap = on_gpu if config.overlap is None else config.overlap
        self._drafter = drafter

    @property
    def has_work(self) -> bool:
        return self.schedule.has_work or bool(self._in_flight) or len(self._pending_grammars) > 0

    # ---- Requests

    def add(self, submission: Submission) -> int:
        """Queues a request and returns its id. What can never fit is refused here (if its grammar must be compiled first, with
        an update)."""
        request, sampling = submission.request, submission.sampling
        clock = StageClock(submission.seconds)
        request_id = next(self._numbers)
        max_tokens = longest_answer(request, sampling.max_tokens, self.max_model_len)
        long_from = self.schedule.long_from
        request, is_long = in_its_rope_regime(request, long_from)
        root = self._root_key(request_id, submission.cache_salt, request.adapter, is_long)
        may_grow_long = long_from is not None and not is_long
        long_root = self._root_key(request_id, submission.cache_salt, request.adapter, True) if may_grow_long else None
        answers: list[SequenceOutput] = []
        for index in range(sampling.n):
            sequence = Sequence(
                id=next(self._numbers),
                request=request,
                max_tokens=max_tokens,
                priority=submission.priority,
                arrival=request_id,
                root=root,
                item_keys=tuple(map(self.encoder.embedding_key, request.items)),
                page_size=self.config.page_size,
                leader=answers[0].sequence if answers else None,
                answer_returns=submission.answer_returns,
                long_root=long_root,
            )
            # Without a seed of its own a request has one by its number: a whole run is repeatable.
            numbers = UniformNumbers(sampling.seed, self.default_seed + request_id, index)
            text = IncrementalText(self.tokenizer, submission.stop, sampling.skip_special_tokens, sampling.min_tokens)
            ends = submission.end_tokens
            answers.append(
                SequenceOutput(request_id, index, sequence, sampling, numbers, ends, text, clock, time.perf_counter())
            )
        grammar = self._pending_grammars.start(request_id, sampling.structured) if sampling.structured is not None else None
        if sampling.structured is None or grammar is not None:
            self._admit(answers, grammar)
        self._requests[request_id] = answers
        self.encoder.hold(request.items)
        return request_id

    def _admit(self, answers: Seq[SequenceOutput], grammar: Grammar | None) -> None:
        for answer in answers:
            answer.grammar = grammar.matcher(answer.end_tokens) if grammar is not None else None
        admit(self.schedule, [answer.sequence for answer in answers])
        self._answers |= {answer.sequence.id: answer for answer in answers}

    def _admit_formed(self) -> list[Update]:
        """Requests whose grammar is ready join the schedule."""
        updates = []
        for request_id, grammar in self._pending_grammars.take_ready(idle=not self.schedule.has_work):
            answers = self._requests[request_id]
            try:
                if isinstance(grammar, Exception):
                    raise grammar
                self._admit(answers, grammar)
            except Exception as error:
                self._drop_request(request_id, answers[0].sequence.request)
                updates += [Update(request_id, answer.index, error=error) for answer in answers]
        return updates

    def _root_key(self, request_id: int, cache_salt: str, adapter: int, is_long: bool) -> bytes:
        """Page keys start from the tenant and from what else makes other keys and values of the same tokens: an adapter, the
        frequencies of long sequences; without prefix caching, from the request itself."""
        own = "" if self.config.enable_prefix_caching else f"request {request_id} "
        computed = (f"adapter {adapter} " if adapter >= 0 else "") + ("long " if is_long else "")
        return root_key(f"{own}{computed}salt {cache_salt}")

    # ---- A step: plan, pack, submit, collect, tell

    def step(self) -> list[Update]:
        """Plans a step, submits it, and says what the one before it brought, which the device computed meanwhile.

        Without overlap, or where the next tokens depend on what the host makes of these, it says what this step brought.
        """
        updates = self._admit_formed()
        # To wait for what the tower is at would hold up those who decode; when there is none, there is nothing else to do.
        updates += self._take_encodes(wait=self._idle or not self.schedule.decodes)
        if self._in_flight and self.executor.ready:  # answers go out before the next launch, which takes its time
            updates += self._collect()
        step = self._plan()
        if step.encodes:
            self.encoder.submit(step.encodes)
            self._look_ahead()
            updates += self._take_encodes()
        if step.chunks and self._is_computable(step):
            updates += self._submit(step)
        # Only a step that was launched just now may stay in flight: whoever the plan preempted has its tokens before the next.
        launched = bool(self._in_flight) and self._in_flight[-1].step is step
        kept = 1 if launched and self._may_overlap() else 0
        while len(self._in_flight) > kept:
            updates += self._collect()
        if step.awaits_pixels and not (step.chunks or updates):  # there is nothing else to do
            self.encoder.wait(_WAIT_S)
        return updates

    def _plan(self) -> Step:
        if self.encoder.sources_changed() or self._seen_changes != self.schedule.changes:
            self._look_ahead()  # before the plan, so that it waits for pixels that have only now been asked for
        if self._drafter is not None:
            for sequence in self.schedule.running:
                sequence.drafts = self._drafts(self._drafter, sequence)
        step = plan_step(self.schedule)
        self._idle = not step.chunks
        for chunk in step.chunks:
            answer = self._answers[chunk.sequence.id]
            if answer.started is None:
                answer.started = time.perf_counter()
        return step

    def _look_ahead(self) -> None:
        """Images that will be needed soon are decoded beside what the device does."""
        self._seen_changes = self.schedule.changes
        self.encoder.want(upcoming_items(self.schedule))

    def _drafts(self, drafter: Drafter, sequence: Sequence) -> tuple[int, ...]:
        """As many as the answer has room for; none where the host must see each token first."""
        if not sequence.decoding or sequence.in_flight or self._answers[sequence.id].grammar is not None:
            return ()
        room = sequence.max_tokens - len(sequence.output) - 1
        if sequence.long_root is not None and self.schedule.long_from is not None:
            room = min(room, self.schedule.long_from - len(sequence))  # no guess has frequencies of its own
        return drafter(sequence)[: max(0, room)]

    def _is_computable(self, step: Step) -> bool:
        """Not if an image that it was to read could not be encoded: then the next plan is made without it."""
        return not step.encodes or all(
            chunk.sequence.status is Status.RUNNING and chunk.sequence.has_pinned(chunk.start, chunk.start + chunk.count)
            for chunk in step.chunks
        )

    def _submit(self, step: Step) -> list[Update]:
        """Hands the step to the worker; what it computes counts as there from now on."""
        self._times.tell_users(step.chunks, self._answers)
        snapshots = take_slots(self.schedule, step)
        given = pack_step(step, self._answers, self.schedule.embeddings, snapshots)
        self.counts.note_step(given.batch)
        clocks = [self._answers[c.sequence.id].clock for c in step.chunks if not (c.sequence.output or c.sequence.in_flight)]
        failure = self.executor.submit(given)
        if failure is None and given.masked:
            failure = self.executor.submit_masks(self._masks(given, step))
        if failure is not None:  # whatever happens in a step costs its requests, not the engine
            give_back(self.schedule, snapshots)
            return self._fail([chunk.sequence for chunk in step.chunks], failure.error())
        advance(self.schedule, step)
        keep(self.schedule, step, snapshots)
        self._in_flight.append(StepInFlight(step, bool(given.masked), clocks, self._times.take_in_line()))
        return []

    def _masks(self, given: StepInput, step: Step) -> GrammarMasks:
        """Made while the device computes the logits."""
        sampling = [self._answers[chunk.sequence.id] for chunk in step.chunks if chunk.samples]
        formed = [answer for answer in sampling if answer.grammar is not None]
        matchers = [answer.grammar for answer in formed if answer.grammar is not None]
        banned = [answer.banned_ids(len(answer.sequence.output)) for answer in formed]
        vocab = self.executor.facts.vocab_size
        try:
            words = allowed_tokens(matchers, banned, vocab)
        except Exception as error:  # the step waits for masks, whatever the library does: these answers fail when it is read
            words = np.full((len(matchers), -(-vocab // 32)), -1, np.int32)
            for matcher in matchers:
                matcher.error = f"{type(error).__name__}: {error}"
        return GrammarMasks(given.number, words)

    def _may_overlap(self) -> bool:
        """Whether the next step can be submitted before the tokens of the last are known to the host."""
        if not self._overlap or self._drafter is not None or not self._in_flight:
            return False
        return not self._in_flight[-1].has_grammars

    def _collect(self) -> list[Update]:
        """Reads what the oldest step brought, the one wait for the device, and says what became of it."""
        step_in_flight = self._in_flight.popleft()
        output = self.executor.collect()
        step = step_in_flight.step
        assert output.number == step.number, f"step {output.number} came before step {step.number}"
        if output.failure is not None:
            return self._fail_late(step, output.failure.error())
        step_in_flight.tell_times(output, self.busy)
        if self.schedule.pace is not None:
            measured = output.seconds, step.patches_in_line, output.tower_seconds
            self.schedule.pace.note(step.decoding, step.prompt_tokens, *measured)
        tokens, logprobs = step_in_flight.read(output, self._answers)
        taken = take_tokens(self.schedule, step, tokens)
        updates: list[Update] = []
        for chunk in step.chunks:
            if chunk.sequence.id in taken and chunk.sequence.id in self._answers:  # else another answer has failed
                answer = self._answers[chunk.sequence.id]
                updates += self._tell(answer, taken[chunk.sequence.id], logprobs.get(chunk.sequence.id, []))
        return updates

    def _tell(self, answer: SequenceOutput, tokens: Seq[int], logprobs: list[TokenLogprob]) -> list[Update]:
        """What tokens that the answer's sequence has just got make of its text. Those after its end are dropped."""
        sequence = answer.sequence
        if answer.grammar is not None and answer.grammar.error is not None:
            fault = f"The answer cannot go on in the form asked for: {answer.grammar.error}."
            return self._fail([sequence], PromptError(fault))
        before = len(sequence.output) - len(tokens)
        text, reason, used = "", None, 0
        while used < len(tokens) and reason is None:
            delta, reason = answer.take_token(tokens[used], before + used + 1, self.tokenizer)
            text, used = text + delta, used + 1
        del sequence.output[before + used :]
        told = tuple(logprobs[:used])
        answer.logprobs += told
        completion = self._end(answer, reason) if reason is not None else None
        return [Update(answer.request_id, answer.index, text, tuple(tokens[:used]), told, completion)]

    # ---- Images

    def _take_encodes(self, wait: bool = False) -> list[Update]:
        """What the encoder has to say. With `wait` it may wait for the tower, when there is nobody whom that would hold up."""
        updates: list[Update] = []
        for item, error in self.encoder.undecodable():
            updates += self._fail_users(self.encoder.embedding_key(item), error)
        for result in self.encoder.poll(wait):
            for key in result.ready:
                encode_is_ready(self.schedule, key)
            for key in result.again:
                abandon_encode(self.schedule, key)
            for old, new in result.renamed.items():
                rename_item(self.schedule, self._sequences(), old, new)
            for key, failure in result.failed.items():
                updates += self._fail_users(key, failure)
                abandon_encode(self.schedule, key)
            self._times.note_encoded(result, self.schedule.running, self._answers)
            if result.again:
                self._look_ahead()
            self._drop_unneeded_embeddings()  # who asked may have left meanwhile
        return updates

    def _sequences(self) -> Iterator[Sequence]:
        """All that have not ended, those that wait for their grammar included."""
        return (answer.sequence for answers in self._requests.values() for answer in answers)

    def _fail_users(self, key: bytes, error: Exception) -> list[Update]:
        """Sequences that need an item which cannot be had fail, wherever they are in the line."""
        line = (*self.schedule.running, *self.schedule.waiting)
        return self._fail([sequence for sequence in line if needs(self.schedule, sequence, key)], error)

    # ---- Ends

    def _end(self, answer: SequenceOutput, reason: FinishReason) -> Completion:
        completion = answer.completion(reason)
        self._forget(answer)
        return completion

    def _forget(self, answer: SequenceOutput) -> None:
        finish(self.schedule, answer.sequence)
        del self._answers[answer.sequence.id]
        left = self._requests[answer.request_id]
        left.remove(answer)
        if not left:
            self._drop_request(answer.request_id, answer.sequence.request)

    def _drop_request(self, request_id: int, request: Request) -> None:
        del self._requests[request_id]
        self.encoder.release(request.items)
        self._drop_unneeded_embeddings()

    def _drop_unneeded_embeddings(self) -> None:
        """Without a cache, embeddings go when the last request that has the item is over."""
        if self.config.embedding_cache_gb == 0:
            self.schedule.embeddings.retain({key for sequence in self._sequences() for key in sequence.item_keys})

    def _fail(self, sequences: Seq[Sequence], error: Exception) -> list[Update]:
        """Ends the requests these sequences belong to, all of their answers, and tells why."""
        alive = [sequence for sequence in sequences if sequence.id in self._answers]
        requests = {self._answers[sequence.id].request_id for sequence in alive}
        updates = []
        for request_id in sorted(requests):
            for answer in list(self._requests[request_id]):
                self._forget(answer)
                updates.append(Update(request_id, answer.index, error=error))
        if updates:
            self._look_ahead()  # what only they needed is decoded no further
        return updates

    def _fail_late(self, step: Step, error: Exception) -> list[Update]:
        """A step failed after others were planned on what it was to compute: all of them fail, no cached page is trusted."""
        spoilt = [chunk.sequence for chunk in step.chunks]
        while self._in_flight:
            spoilt += [chunk.sequence for chunk in self._in_flight.popleft().step.chunks]
            self.executor.collect()
        updates = self._fail(spoilt, error)
        waits_for_cached = [s for s in self.schedule.running if s.resumes_at is not None or s.copies is not None]
        for sequence in waits_for_cached:
            preempt(self.schedule, sequence)
        self.schedule.pages.clear()
        return updates

    def abort(self, request_id: int) -> bool:
        """Ends a request in whatever state it is. False if it is not there (any more)."""
        answers = list(self._requests.get(request_id, ()))
        if answers and answers[0].sequence.id not in self._answers:  # its grammar is not ready
            self._pending_grammars.drop(request_id)
            self._drop_request(request_id, answers[0].sequence.request)
            return True
        for answer in answers:
            self._forget(answer)
        if answers:
            self._look_ahead()  # what only it needed is decoded no further
        return bool(answers)

    # ---- What else is asked

    def flush(self) -> None:
        """Forgets all cached prefixes and embeddings that no running request uses."""
        self.schedule.pages.clear()
        self.schedule.embeddings.clear()

    def embed(self, item: MediaItem, pixels: NDArray[np.uint8] | None) -> torch.Tensor | None:
        """Embeddings of an item, [rows, width], past the cache. Without pixels the GPU decodes it; None if it cannot."""
        return self.executor.embed(EncodeItem(b"", np.empty(0, np.int64), item, pixels))

    def check_integrity(self) -> None:
        self.schedule.check_integrity()
        assert {s.id for s in (*self.schedule.waiting, *self.schedule.running)} == set(self._answers)

    def close(self) -> None:
        self._pending_grammars.close()
        self.encoder.close()
        self.executor.close()
