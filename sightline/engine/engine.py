"""The engine: requests in, tokens out. `step` is the whole story; everything else prepares it or reads its results."""

import itertools
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from sightline.cache.keys import root_key
from sightline.config import EngineConfig, MediaConfig
from sightline.engine.answers import Answer, FinishReason
from sightline.engine.forming import Forming
from sightline.engine.launched import Launched
from sightline.engine.out_of_memory import recover
from sightline.engine.parts import make_parts
from sightline.engine.stage_times import DeviceTime, StageTimes
from sightline.errors import PromptError, UserError
from sightline.grammar.compile import Grammar
from sightline.models.model import VisionLanguageModel
from sightline.prompt.tokenizer import Tokenizer
from sightline.run.device_timer import DeviceTimer
from sightline.run.runner import Encoded
from sightline.run.sampler import SamplingRow, make_generator
from sightline.run.sampling_params import ResolvedSampling
from sightline.schedule.plan import plan_step
from sightline.schedule.progress import abandon_encode, admit, advance, finish, finish_encodes, take_tokens
from sightline.schedule.state import Chunk, Encode, Sequence, Status, Step
from sightline.schedule.upcoming import needs, upcoming_items
from sightline.spec import ProcessorSpec
from sightline.stream.detokenise import IncrementalText
from sightline.timing import StageClock
from sightline.types import Completion, MediaItem, Request, TokenLogprob


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
        model: VisionLanguageModel,
        processor: ProcessorSpec,
        tokenizer: Tokenizer,
        config: EngineConfig,
        max_model_len: int,
        default_seed: int = 0,
        max_image_pixels: int = MediaConfig.max_image_pixels,
    ) -> None:
        weight = model.text.embed_tokens.weight
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.max_model_len, self.default_seed = max_model_len, default_seed
        self.weights_epoch = 0  # raise it when weights change: nothing computed with the old ones is found again
        self.memory, self.schedule, self.runner = make_parts(model, processor, config, max_model_len, max_image_pixels)
        self._answers: dict[int, Answer] = {}  # by sequence id
        self._requests: dict[int, list[Answer]] = {}  # by request id
        self._forming = Forming(tokenizer)  # requests that are not in the schedule yet
        self._numbers = itertools.count()
        self._line: tuple[int, ...] = ()  # who ran and waited when upcoming images were last looked for
        self._times = StageTimes()
        self.busy = StageClock()  # how long the device worked: steps, tower
        self._launched: Launched | None = None
        self._idle = False  # the last step computed nothing
        self._overlap = weight.is_cuda if config.overlap is None else config.overlap

    @property
    def has_work(self) -> bool:
        return self.schedule.has_work or self._launched is not None or len(self._forming) > 0

    def add(
        self,
        request: Request,
        sampling: ResolvedSampling,
        *,
        end_tokens: frozenset[int],
        stop: tuple[str, ...] = (),
        priority: int = 0,
        cache_salt: str = "",
        clock: StageClock | None = None,
    ) -> int:
        """Queues a request and returns its id. What can never fit is refused here (if its grammar must be compiled first, with
        an update). Smaller priorities go first."""
        request_id = next(self._numbers)
        room = self.max_model_len - max(len(request), len(request) + request.position_delta)
        root = self._root_key(request_id, cache_salt)
        answers: list[Answer] = []
        for index in range(sampling.n):
            sequence = Sequence(
                id=next(self._numbers),
                request=request,
                max_tokens=max(1, min(sampling.max_tokens, room)),
                priority=priority,
                arrival=request_id,
                root=root,
                item_keys=tuple(self._embedding_key(item) for item in request.items),
                page_size=self.config.page_size,
                leader=answers[0].sequence if answers else None,
            )
            row = SamplingRow(
                sampling=sampling,
                prompt_ids=request.token_ids,
                output_ids=sequence.output,
                # without a seed of its own a request has its own luck, and a whole run is still repeatable
                generator=make_generator(sampling.seed, self.default_seed + request_id, index),
            )
            text = IncrementalText(self.tokenizer, stop, min_tokens=sampling.min_tokens)
            answers.append(
                Answer(request_id, index, sequence, row, end_tokens, text, clock or StageClock(), time.perf_counter())
            )
        grammar = self._forming.start(request_id, sampling.structured) if sampling.structured is not None else None
        if sampling.structured is None or grammar is not None:
            self._admit(answers, grammar)
        self._requests[request_id] = answers
        return request_id

    def _admit(self, answers: Seq[Answer], grammar: Grammar | None) -> None:
        for answer in answers:
            answer.row.grammar = grammar.matcher(answer.end_tokens) if grammar is not None else None
        admit(self.schedule, [answer.sequence for answer in answers])
        self._answers |= {answer.sequence.id: answer for answer in answers}

    def _admit_formed(self) -> list[Update]:
        """Requests whose grammar is ready join the schedule."""
        updates = []
        for request_id, grammar in self._forming.take_ready(idle=not self.schedule.has_work):
            answers = self._requests[request_id]
            try:
                if isinstance(grammar, Exception):
                    raise grammar
                self._admit(answers, grammar)
            except Exception as error:
                del self._requests[request_id]
                updates += [Update(request_id, answer.index, error=error) for answer in answers]
        return updates

    def _root_key(self, request_id: int, cache_salt: str) -> bytes:
        """Page keys start from the weights and the tenant; without prefix caching, from the request itself."""
        own = "" if self.config.enable_prefix_caching else f" request {request_id}"
        return root_key(f"epoch {self.weights_epoch}{own} salt {cache_salt}")

    def _embedding_key(self, item: MediaItem) -> bytes:
        decoder = self.runner.gpu_decoder
        return self.weights_epoch.to_bytes(8, "little") + item.key + (decoder.name if decoder else "cpu").encode()

    def step(self) -> list[Update]:
        """Plans a step, launches it, and says what the one before it brought, which the device did meanwhile.

        Without overlap, or where the next tokens depend on what the host makes of these, it says what this step brought.
        """
        updates = self._admit_formed()
        # To wait for what is encoded aside would hold up those who decode; when there is none, there is nothing else to do.
        finish_encodes(self.schedule, self.runner.encoded_aside(wait=self._idle or not self.schedule.decodes))
        self._decode_ahead(changed=False)  # before the plan, so that it waits for pixels that have only now been asked for
        self.schedule.undecoded = self.runner.ahead.unfinished
        step = plan_step(self.schedule)
        self._idle = not step.chunks
        self._note_starts(step.chunks)
        failed, step = self._encode(step)
        updates += failed
        self._times.tell_users(step.chunks, self._answers)
        self._decode_ahead(changed=bool(step.encodes))
        if self._launched is not None and self._launched.ready:  # answers go out before the next launch, which takes its time
            updates += self._take_launched()
            step = replace(step, chunks=tuple(chunk for chunk in step.chunks if chunk.sequence.status is Status.RUNNING))
        launched: Launched | None = None
        try:
            launched = self._launch(step)
            advance(self.schedule, step)
        except Exception as error:  # whatever happens in a step costs its requests, not the engine
            advance(self.schedule, replace(step, chunks=()))
            updates += self._fail([chunk.sequence for chunk in step.chunks], recover(error))
        updates += self._take_launched()
        self._launched = launched
        if launched is not None and not (self._overlap and launched.may_stay):
            updates += self._take_launched()
        return updates

    def _note_starts(self, chunks: Seq[Chunk]) -> None:
        for chunk in chunks:
            answer = self._answers[chunk.sequence.id]
            if answer.started is None:
                answer.started = time.perf_counter()

    def _encode(self, step: Step) -> tuple[list[Update], Step]:
        """Runs the step's encodes. Sequences that need an item which cannot be decoded fail and leave the step."""
        if not step.encodes:
            return [], step
        step = replace(step, encodes=tuple(self._with_bytes(encode) for encode in _in_order(step.encodes)))
        result = self._run_encodes([encode for encode in step.encodes if not encode.aside], aside=False)
        beside = self._run_encodes([encode for encode in step.encodes if encode.aside], aside=True)
        self._times.note_aside(step, beside)
        self._times.note_encode(step, result, self._answers)
        if result.tower is not None:
            self._times.pending.append(DeviceTime(result.tower, [self.busy], "tower"))
        result.failures.update(beside.failures)
        if not result.failures:
            return [], step
        updates: list[Update] = []
        for encode in step.encodes:
            failure = result.failures.get(encode.entry.key)
            if failure is not None:
                line = (*self.schedule.running, *self.schedule.waiting)
                updates += self._fail([s for s in line if needs(self.schedule, s, encode.entry.key)], failure)
                abandon_encode(self.schedule, encode.entry)
        chunks = tuple(chunk for chunk in step.chunks if chunk.sequence.status is Status.RUNNING)
        encodes = tuple(encode for encode in step.encodes if encode.entry.key not in result.failures)
        return updates, replace(step, chunks=chunks, encodes=encodes)

    def _run_encodes(self, encodes: list[Encode], aside: bool) -> Encoded:
        if not encodes:
            return Encoded()
        try:
            return self.runner.encode(encodes, aside)
        except Exception as error:  # not one item's fault, say out of memory: all who wait for these items fail
            told = recover(error)
            return Encoded({encode.entry.key: told for encode in encodes})

    def _decode_ahead(self, changed: bool) -> None:
        """Looks for what comes next only when that has changed or can have: most steps of decoding change nothing."""
        running, waiting = self.schedule.running, self.schedule.waiting
        line = (len(running), len(waiting), running[-1].id if running else -1, waiting[0].id if waiting else -1)
        if changed or line != self._line:
            self._line = line
            self.runner.decode_ahead(upcoming_items(self.schedule))

    def _with_bytes(self, encode: Encode) -> Encode:
        """An item may be named by its digest alone; then its bytes are those that another request has, if one does."""
        if encode.item.ref.data:
            return encode
        for sequence in (*self.schedule.running, *self.schedule.waiting):
            for key, item in zip(sequence.item_keys, sequence.request.items, strict=True):
                if key == encode.entry.key and item.ref.data:
                    return replace(encode, item=item)
        return encode

    def _launch(self, step: Step) -> Launched | None:
        """Computes the step's chunks; None if it samples nothing that would have to be read."""
        if not step.chunks:
            return None
        sampling = [self._answers[chunk.sequence.id] for chunk in step.chunks if chunk.samples]
        for answer in sampling:
            sequence = answer.sequence
            early = len(sequence.output) + sequence.in_flight < answer.row.sampling.min_tokens
            answer.row.banned_ids = tuple(answer.end_tokens) if early else ()
        empty = [chunk.sequence for chunk in step.chunks if not (chunk.sequence.output or chunk.sequence.in_flight)]
        filling = [self._answers[sequence.id].clock for sequence in empty]
        with DeviceTimer(self.runner.device) as timer:
            readout = self.runner.compute(step.chunks, [answer.row for answer in sampling])
        self._times.pending.append(DeviceTime(timer, [self.busy], "steps"))
        if filling:
            self._times.pending.append(DeviceTime(timer, filling, "prefill"))
        return None if readout is None else Launched(step, readout, sampling, self._times.take())

    def _take_launched(self) -> list[Update]:
        """Reads what the launched step sampled, the one wait for the device, and says what became of it."""
        launched, self._launched = self._launched, None
        if launched is None:
            return []
        try:
            tokens, logprobs = launched.read()
        except Exception as error:
            alive = [chunk.sequence for chunk in launched.step.chunks if chunk.sequence.id in self._answers]
            return self._fail(alive, recover(error))
        take_tokens(self.schedule, launched.step, tokens)
        return self._take_tokens(launched.step.chunks, tokens, logprobs)

    def _take_tokens(self, chunks: Seq[Chunk], tokens: dict[int, int], logprobs: dict[int, TokenLogprob]) -> list[Update]:
        updates: list[Update] = []
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.id not in tokens or sequence.id not in self._answers:  # another answer to the request has failed
                continue
            answer, token = self._answers[sequence.id], tokens[sequence.id]
            if answer.row.grammar is not None and answer.row.grammar.error is not None:
                fault = f"The answer cannot go on in the form asked for: {answer.row.grammar.error}."
                updates += self._fail([sequence], PromptError(fault))
                continue
            told = (logprobs[sequence.id],) if sequence.id in logprobs else ()
            answer.logprobs += told
            delta, reason = answer.take_token(token, self.tokenizer)
            completion = self._end(answer, reason) if reason is not None else None
            updates.append(Update(answer.request_id, answer.index, delta, (token,), told, completion))
        return updates

    def _end(self, answer: Answer, reason: FinishReason) -> Completion:
        completion = answer.completion(reason)
        self._forget(answer)
        return completion

    def _forget(self, answer: Answer) -> None:
        finish(self.schedule, answer.sequence)
        del self._answers[answer.sequence.id]
        left = self._requests[answer.request_id]
        left.remove(answer)
        if not left:
            del self._requests[answer.request_id]

    def _fail(self, sequences: Seq[Sequence], error: Exception) -> list[Update]:
        """Ends the requests these sequences belong to, all of their answers, and tells why."""
        requests = {self._answers[sequence.id].request_id for sequence in sequences}
        updates = []
        for request_id in sorted(requests):
            for answer in list(self._requests[request_id]):
                self._forget(answer)
                updates.append(Update(request_id, answer.index, error=error))
        return updates

    def abort(self, request_id: int) -> bool:
        """Ends a request in whatever state it is. False if it is not there (any more)."""
        answers = list(self._requests.get(request_id, ()))
        if answers and answers[0].sequence.id not in self._answers:  # its grammar is not ready
            self._forming.drop(request_id)
            del self._requests[request_id]
            return True
        for answer in answers:
            self._forget(answer)
        return bool(answers)

    def flush(self) -> None:
        """Forgets all cached prefixes and rows that no running request uses."""
        self.schedule.pages.clear()
        self.schedule.embeddings.clear()

    def embed(self, items: Seq[MediaItem]) -> list[torch.Tensor]:
        """Rows of items, [rows, row_width] each, past the cache, one item at a time."""
        finish_encodes(self.schedule, self.runner.encoded_aside(wait=True))  # they use the same buffers
        rows = []
        for item in items:
            made = self.runner.make_patches_of([item], StageClock())[0]
            if isinstance(made, UserError):
                raise made
            rows.append(self.runner.encode_patches([item], [made]))
        return rows

    def check_integrity(self) -> None:
        self.schedule.check_integrity()
        assert {s.id for s in (*self.schedule.waiting, *self.schedule.running)} == set(self._answers)

    def close(self) -> None:
        self._forming.close()
        self.runner.close()


def _in_order(encodes: Seq[Encode]) -> list[Encode]:
    """As they are run: those aside come last. The first saves all rows that leave the arena, for what one of the step's
    reservations makes free may be in another's place."""
    offloads = tuple(offload for encode in encodes for offload in encode.offloads)
    ordered = sorted(encodes, key=lambda encode: encode.aside)
    return [replace(encode, offloads=() if place else offloads) for place, encode in enumerate(ordered)]
