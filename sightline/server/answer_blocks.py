"""An answer as the newer APIs tell it: a row of blocks, thoughts, text and calls, of which one at a time is open."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sightline.engine.messages import UpdateHead
from sightline.server.call import Call
from sightline.server.chat_reply import ChatChoiceState
from sightline.stream.answer_parts import AnswerParser, ContentDelta, Delta, ReasoningDelta
from sightline.types import TokenLogprob


@dataclass
class Block:
    kind: Literal["reasoning", "text", "call"]
    number: int  # its index in the answer
    id: str = ""  # of a call
    name: str = ""  # of the function that is called
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What it says; of a call, its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class Change:
    what: Literal["open", "more", "close"]
    block: Block
    text: str = ""  # that is new
    logprobs: Sequence[TokenLogprob] = ()


class AnswerBlocks:
    def __init__(self, call: Call, parser: AnswerParser) -> None:
        self._call, self._answer = call, ChatChoiceState(parser)
        self._open = False  # the last block
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text has not come
        self.blocks: list[Block] = []

    @property
    def reason(self) -> str | None:
        return self._answer.reason

    @property
    def matched_stop(self) -> int | str | None:
        return self._answer.matched_stop

    def take(self, batch: Sequence[tuple[int, UpdateHead]]) -> list[Change]:
        changes: list[Change] = []
        for _, update in batch:
            self._logprobs += update.logprobs
            for delta in self._answer.take(update):
                changes += self._take(delta)
            if self._answer.reason is not None:
                if all(block.kind == "reasoning" for block in self.blocks):  # clients expect something that was said
                    changes += self._take(ContentDelta(""))
                changes += self._close()
                self._call.reasons[0] = self._answer.reason
                self._call.reasoning_tokens = self._answer.reasoning_tokens
        return changes

    def _take(self, delta: Delta) -> list[Change]:
        changes = []
        if isinstance(delta, ContentDelta):
            changes += self._begin(Block("text", len(self.blocks)))
            text = delta.text
        elif isinstance(delta, ReasoningDelta):
            changes += self._begin(Block("reasoning", len(self.blocks)))
            text = delta.text
        else:
            if delta.id is not None:
                changes += self._close()
                changes += self._begin(Block("call", len(self.blocks), delta.id, delta.name or ""))
            text = delta.arguments
        block = self.blocks[-1]
        logprobs, self._logprobs = (self._logprobs, []) if block.kind == "text" else ([], self._logprobs)
        block.pieces.append(text)
        block.logprobs += logprobs
        return [*changes, Change("more", block, text, logprobs)] if text else changes

    def _begin(self, block: Block) -> list[Change]:
        """Unless one of the kind is open."""
        if self._open and self.blocks[-1].kind == block.kind:
            return []
        closed = self._close()
        self.blocks.append(block)
        self._open = True
        return [*closed, Change("open", block)]

    def _close(self) -> list[Change]:
        if not self._open:
            return []
        self._open = False
        block = self.blocks[-1]
        if block.kind == "text":
            block.logprobs += self._logprobs  # of tokens without a text, such as the end
            self._logprobs = []
        return [Change("close", block)]
