"""Random requests of every kind, aborted, stopped, resubmitted; and whether each got what it must."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from messages.columns import pack_float32, pack_int32
from messages.ring.adapters import Adapter
from messages.ring.dry import Dry
from messages.ring.images import ImageInput
from messages.ring.requests import AbortMsg, FlushCache, SamplingParams, StopSeen, UserMsg
from messages.ring.spans import PromptSpan
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_grammar import allowed_next, grammar_of
from tests.scheduler_proc.simulated_pooling import POOLINGS, expected_vectors
from tests.scheduler_proc.simulated_runner import expected_logprobs, expected_output, values_of
from tests.scheduler_proc.simulated_spans import embedded_ids, image_of, image_span, span_of

MAX_MODEL_LEN = 64
NUM_IMAGES = 8


@dataclass
class Ask:
    """One request of the soak and what must come of it."""

    prompt: list[int]
    params: SamplingParams
    spans: tuple[PromptSpan, ...] = ()
    attempt: int = 0
    known: list[int] = field(default_factory=list)
    """What the client had when the newest attempt began."""
    expected: list[int] = field(default_factory=list)
    is_cut: bool = False
    """Aborted or stopped by a string: it may end before `expected` does."""
    fails: bool = False
    """It gets a token behind which the model fails: `expected` ends with that."""


def group_of(uid: int) -> int:
    """Returns the group of a request: every other one belongs to a group of up to eight."""
    return 1_000_000 + uid // 16 if uid % 2 else 0


def client_of(uid: int) -> str:
    """Returns the client of a request: for 64 requests there is one, for the next 64 three take turns."""
    return f"client {uid // 16 % 3}" if uid // 64 % 2 else ""


class Soak:
    """Sends random requests to a bench, and disturbs some; knows what must come of each."""

    def __init__(
        self,
        seed: int,
        num_requests: int,
        bench: Bench,
        rich_share: float = 0.5,
        adapters: Sequence[Adapter] = (),
        span_share: float = 0.0,
        has_images: bool = False,
    ):
        self.chance = random.Random(seed)
        self.bench = bench
        self.asks: dict[int, Ask] = {}
        self.rich_share = rich_share
        """How many of the requests want logprobs or change logits."""
        self.adapters = adapters
        self.span_share = span_share
        """How many of the prompts have spans."""
        self.has_images = has_images
        """All spans are of images, encoders answer at random, and now and then one dies."""
        self._unfinished: list[int] = []
        self.num_requests = num_requests
        self._faulty = bench.runner.poison | bench.runner.nan
        self._prompt_ids = sorted({*range(VOCAB_SIZE)} - self._faulty)
        self.prefixes = [[self.chance.choice(self._prompt_ids) for _ in range(40)] for _ in range(6)]

    def make(self, uid: int) -> UserMsg:
        chance = self.chance
        length = chance.choice((1, 2, 4, 7, 16, 33, 60, 63))
        shared = chance.choice(self.prefixes)[: chance.randrange(0, min(length, 40) + 1)]
        prompt = shared + [chance.choice(self._prompt_ids) for _ in range(length - len(shared))]
        adapter = chance.choice([*self.adapters, None]) if self.adapters else None
        salt = "" if adapter is None else adapter.digest
        params: dict[str, Any] = {
            "adapter": adapter,
            "max_tokens": chance.choice((0, 1, 2, 5, 9, 30, 200)),
            "temperature": chance.choice((0.0, 0.6, 1.0)),
            "top_p": chance.choice((1.0, 0.9)),
            "typical_p": chance.choice((1.0, 1.0, 1.0, 0.5)),
            "xtc_probability": chance.choice((0.0, 0.0, 0.0, 0.25)),
            "top_k": chance.choice((0, 20)),
            "seed": chance.randrange(-(2**63), 2**63),
            "ignore_eos": chance.random() < 0.3,
            "stop_token_ids": chance.choice(((), (3, 30))),
            "cache_salt": salt + chance.choice(("", "", "tenant", "other")),
            "priority": chance.choice((0, 0, 0, -5, 3, 1_000)),
        }
        rich = self.new_params() if chance.random() < self.rich_share else {}
        spans = self.new_spans(length)
        message = msgspec.structs.replace(
            user_msg(uid, prompt, **params | rich),
            group=group_of(uid),
            spans=spans,
            images=self.images_of(spans),
            client=client_of(uid),
            share=1 + uid % 2,
        )
        expected = expected_output(prompt, message.sampling_params, VOCAB_SIZE, MAX_MODEL_LEN, (EOS,), spans)
        self._unfinished.append(uid)
        num_good = next((i + 1 for i, token_id in enumerate(expected[:-1]) if token_id in self._faulty), len(expected))
        fails = num_good < len(expected)
        self.asks[uid] = Ask(prompt, message.sampling_params, spans, expected=expected[:num_good], fails=fails)
        return message

    def new_spans(self, length: int) -> tuple[PromptSpan, ...]:
        """Returns spans for a prompt of this length: few different ones, at few places, so that many are equal."""
        chance, spans, start = self.chance, list[PromptSpan](), 0
        if not self.span_share or chance.random() >= self.span_share:
            return ()
        while (start := start + chance.choice((0, 1, 3, 8))) < length and len(spans) < 3:
            num_tokens = min(length - start, chance.choice((1, 2, 5, 9)))
            if self.has_images:
                image = image_of(chance.randrange(NUM_IMAGES))
                is_two_way = chance.random() < 0.3
                spans.append(image_span(start, num_tokens, image, len(spans), is_two_way=is_two_way))
            else:
                spans.append(span_of(start, num_tokens, chance.randrange(2)))
                self.bench.span_rows.place(spans[-1])
            start = spans[-1].end
        return tuple(spans)

    def images_of(self, spans: Sequence[PromptSpan]) -> tuple[ImageInput, ...]:
        by_digest = {image.encoding_digest(): image for image in map(image_of, range(NUM_IMAGES))}
        return tuple([by_digest[span.digest] for span in spans]) if self.has_images else ()

    def drive_encoders(self) -> None:
        """Lets an encoder answer, or die, or neither."""
        encoders, number = self.bench.encoders, self.chance.random()
        if number < 0.5 and encoders.open:
            self.bench.send(encoders.answer())
        elif number > 0.97 and encoders.open:
            self.bench.send(encoders.die())

    def new_params(self) -> dict[str, Any]:
        """Returns logprobs and changes to the logits, few of each, never so many bans that nothing is left."""
        chance = self.chance
        if chance.random() < 0.2:
            return {"max_tokens": 0, "pooling": chance.choice(POOLINGS)}
        ids = [chance.randrange(VOCAB_SIZE) for _ in range(12)]
        params: dict[str, Any] = {}
        if chance.random() < 0.4:
            params["num_logprobs"] = chance.choice((0, 1, 4))
        if chance.random() < 0.4:
            params["num_prompt_logprobs"] = chance.choice((0, 2, 5))
            params["echo"] = chance.random() < 0.5
        if chance.random() < 0.3:
            params["min_tokens"] = chance.choice((1, 4, 8))
        if chance.random() < 0.3:
            params["bad_word_ids"] = (pack_int32(ids[:1]), pack_int32(ids[1:3]), pack_int32(ids[3:6]))
        if chance.random() < 0.3:
            params["dry"] = Dry(1.5, 2.0, chance.choice((1, 2)), chance.choice((-1, 20)), (), pack_int32(ids[:2]))
        if chance.random() < 0.3:
            params |= {"bias_ids": pack_int32(ids[6:8]), "bias_values": pack_float32((2.5, -100))}
        if chance.random() < 0.2:
            params["grammar"] = grammar_of(chance.choice((1, 12, 60, 60)), chance.randrange(3))
        elif chance.random() < 0.2:
            params["allowed_token_ids"] = pack_int32({*range(10, 30), *ids[8:]})
        if chance.random() < 0.3:
            params |= {"repetition_penalty": 1.2, "presence_penalty": chance.choice((0.0, 0.5))}
        return params

    def running(self) -> list[int]:
        finished = self.bench.inbox.finished
        self._unfinished = [uid for uid in self._unfinished if (uid, self.asks[uid].attempt) not in finished]
        return self._unfinished

    def disturb(self) -> None:
        """Aborts, stops or resubmits one request, now and then one that has ended already."""
        chance = self.chance
        running = self.running() if chance.random() < 0.95 else []
        uid = chance.choice(running or list(self.asks))
        ask = self.asks[uid]
        match chance.randrange(7):
            case 0:
                ask.is_cut = True
                self.bench.send(AbortMsg(uid, ask.attempt, chance.choice(("abort", "timeout"))))
            case 1:
                ask.is_cut = True
                self.bench.send(StopSeen(uid, ask.attempt), StopSeen(uid, ask.attempt))
            case 2 if ask.attempt:
                self.bench.send(AbortMsg(uid, ask.attempt - 1))
            case 3 | 4 if uid in self.running():
                self.resubmit(uid, ask)
            case 5:
                self.bench.send(FlushCache(uid, chance.random() < 0.5))
            case _:
                pass

    def resubmit(self, uid: int, ask: Ask) -> None:
        """Does what the frontend does after a process died: asks on behind the tokens that the client has."""
        ask.known = ask.known + self.bench.output(uid, ask.attempt)
        ask.attempt += 1
        message = user_msg(uid, ask.prompt, attempt=ask.attempt, output_ids=ask.known)
        self.bench.send(
            msgspec.structs.replace(
                message,
                sampling_params=ask.params,
                num_chars_sent=len(ask.known),
                group=group_of(uid),
                spans=ask.spans,
                images=self.images_of(ask.spans),
                client=client_of(uid),
                share=1 + uid % 2,
            )
        )

    def run(self) -> None:
        chance, num_sent = self.chance, 0
        while num_sent < self.num_requests or self.running():
            if num_sent < self.num_requests and len(self.running()) < 30:
                burst = chance.randrange(1, 8)
                self.bench.send(*(self.make(uid) for uid in range(num_sent, num_sent + burst)))
                num_sent += burst
            if chance.random() < 0.3:
                self.disturb()
            if self.has_images:
                self.drive_encoders()
            assert self.bench.step() or not self.running(), "requests wait and nothing runs"
        self.bench.run()

    def check(self) -> None:
        inbox = self.bench.inbox
        assert len(inbox.finished) == len({uid for uid, _ in inbox.finished}) == len(self.asks), "not one end each"
        for uid, ask in self.asks.items():
            got = ask.known + inbox.tokens[uid, ask.attempt]
            end = inbox.finished[uid, ask.attempt]
            assert got == ask.expected[: len(got)], "a token is wrong, lost or doubled"
            assert end.usage.prompt_tokens == len(ask.prompt)
            assert end.usage.completion_tokens == len(got)
            assert 0 <= end.usage.cached_tokens <= len(ask.prompt)
            self.check_logprobs(uid, ask, got)
            self.check_pooled(uid, ask)
            completes_grammar = end.finish_reason == "stop" and self.completes_grammar(ask, got)
            if end.finish_reason in ("abort", "timeout") or (
                end.finish_reason == "stop" and not end.ended_by_token and not completes_grammar
            ):
                assert ask.is_cut
                continue
            assert len(got) == len(ask.expected), "it ended too early"
            assert (end.finish_reason == "error") == ask.fails
            if not ask.fails:
                assert end.ended_by_token == self.ends_by_token(ask)
                is_stop = end.ended_by_token or self.completes_grammar(ask, got)
                assert end.finish_reason == ("stop" if is_stop else "length")

    def check_logprobs(self, uid: int, ask: Ask, got: list[int]) -> None:
        """Every token has its logprobs, once, those of the prompt from the newest attempt."""
        key, inbox = (uid, ask.attempt), self.bench.inbox
        num_top, num_prompt_top = ask.params.num_logprobs, ask.params.num_prompt_logprobs
        tokens, start = ask.prompt + got, len(ask.prompt) + len(ask.known)
        expected = []
        if num_top is not None:
            expected = expected_logprobs(tokens, start, num_top, VOCAB_SIZE, ask.params, ask.spans)
        assert inbox.logprobs[key] == expected, "a logprob is wrong, lost or doubled"
        if key in inbox.prompt_logprobs and num_prompt_top is not None:
            expected = expected_logprobs(ask.prompt, 1, num_prompt_top, VOCAB_SIZE, ask.params, ask.spans)
            hidden = {position - 1 for span in ask.spans for position in range(span.start, span.end)} - {-1}
            known = [entry for index, entry in enumerate(inbox.prompt_logprobs[key]) if index not in hidden]
            assert known == [entry for index, entry in enumerate(expected) if index not in hidden]
            assert all(math.isnan(inbox.prompt_logprobs[key][index][1]) for index in hidden)
            assert ask.known or not inbox.finished[key].usage.cached_tokens
        assert num_prompt_top is None or key in inbox.prompt_logprobs or len(got) == len(ask.known)

    def check_pooled(self, uid: int, ask: Ask) -> None:
        """The newest attempt has the vectors, unless it was cut."""
        pooling, found = ask.params.pooling, self.bench.inbox.pooled.get((uid, ask.attempt))
        if pooling is None or found is None:
            assert found is None
            assert pooling is None or ask.is_cut, "vectors are lost"
            return
        values = values_of(embedded_ids(ask.prompt, ask.spans), ask.params)
        assert found == expected_vectors(values, pooling), "a vector is wrong"

    def completes_grammar(self, ask: Ask, got: list[int]) -> bool:
        if ask.params.grammar is None or self.ends_by_token(ask):
            return False
        return allowed_next(ask.params, got, (EOS,), VOCAB_SIZE) == set()

    def ends_by_token(self, ask: Ask) -> bool:
        ends = {*ask.params.stop_token_ids, *(() if ask.params.ignore_eos else (EOS,))}
        return not ends.isdisjoint(ask.expected[-1:])
