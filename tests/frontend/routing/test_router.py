"""The engine for a request: chosen by cached prefixes and load, never one with far more load than others."""

import random

import msgspec
import pytest

from frontend.links.processes import ProcessView
from frontend.requests.admission import estimate_tokens
from frontend.routing.prefixes import BLOCK_BYTES, PrefixIndex, block_keys
from frontend.routing.router import LITTLE_TOKENS, MAX_LEAD_TOKENS, Offer, Router, choose_engine
from messages.columns import pack_int32
from messages.control.processes import ProcessStatus, ProcessTable
from messages.ring.images import ImageInput
from messages.ring.requests import ChatPrompt, SamplingParams, Stamps, TokenizeMsg

OWN_BLOCK = 1
LONG = "a" * (8 * BLOCK_BYTES)


def ask(uid: int, prompt: str | list[int] | ChatPrompt, salt: str = "") -> TokenizeMsg:
    params = SamplingParams(max_tokens=8, cache_salt=salt)
    text = prompt if isinstance(prompt, str) else None
    ids = pack_int32(prompt) if isinstance(prompt, list) else b""
    chat = prompt if isinstance(prompt, ChatPrompt) else None
    return TokenizeMsg(uid, 0, text, ids, params, Stamps(), chat=chat)


def engine(number: int, **fields: object) -> ProcessStatus:
    name = "scheduler" if number == 1 else f"scheduler-{number}"
    return msgspec.structs.replace(ProcessStatus(name, "ready", incarnation=1), **fields)


class Played:
    """A router and the table that it follows."""

    def __init__(self, num_engines: int = 2):
        self.processes = ProcessView()
        self.router = Router(self.processes, OWN_BLOCK)
        self.show(*(engine(number) for number in range(1, num_engines + 1)))

    def show(self, *statuses: ProcessStatus) -> None:
        self.processes.update(ProcessTable(statuses))
        self.router.follow()


@pytest.mark.parametrize("prompt", [LONG, [7] * 600, ChatPrompt(LONG.encode())], ids=["text", "ids", "chat"])
def test_a_prompt_goes_where_its_beginning_went(prompt: str | list[int] | ChatPrompt):
    router = Played(4).router
    first = router.place(ask(1, prompt))
    others = {router.place(ask(uid, "other" * 100 + str(uid))) for uid in (2, 3)}
    assert first not in others
    longer = prompt if isinstance(prompt, ChatPrompt) else prompt * 2
    assert router.place(ask(4, longer)) == first


def test_other_salts_and_forms_share_nothing():
    keys = [block_keys(ask(1, LONG)), block_keys(ask(1, LONG, salt="x")), block_keys(ask(1, ChatPrompt(LONG.encode())))]
    keys.append(block_keys(ask(1, ChatPrompt(LONG.encode(), add_generation_prompt=False))))
    assert len({key for each in keys for key in each}) == sum(map(len, keys)) == 4 * 8
    assert block_keys(ask(1, LONG[:-1])) == keys[0][:-1], "only whole blocks count"
    assert block_keys(ask(1, "b" + LONG[1:]))[-1] != keys[0][-1], "a block counts with all before it"


def test_without_a_known_beginning_the_least_busy_gets_it_and_idle_ones_take_turns():
    router = Played(3).router
    assert [router.place(ask(uid, str(uid))) for uid in (1, 2, 3)] == [1, 2, 3]
    router.release(2)
    assert router.place(ask(4, "4" * 4000)) == 2
    for uid in (1, 3, 4):
        router.release(uid)
    assert len(router) == 0
    assert [router.place(ask(uid, str(uid))) for uid in (5, 6, 7)] == [1, 3, 2]


def test_a_popular_beginning_spreads_when_its_engine_falls_behind():
    router = Played(2).router
    chosen = [router.place(ask(uid, LONG + str(uid) * 400)) for uid in range(64)]
    assert chosen[1] == chosen[0]
    assert abs(chosen.count(1) - chosen.count(2)) < 40
    assert len(set(chosen)) == 2


def test_a_small_lead_is_no_reason_to_leave_a_short_beginning():
    has_it, has_not = Offer(1, 2000.0, 48.0), Offer(2, 900.0, 0.0)
    assert choose_engine([has_it, has_not]).engine == 1
    assert choose_engine([has_it, has_not._replace(load_tokens=0.0)]).engine == 2, "an engine that idles gets work"
    assert choose_engine([has_it._replace(load_tokens=3000.0), has_not]).engine == 2, "a lead that is not small"
    busy = (offer._replace(load_tokens=offer.load_tokens + LITTLE_TOKENS) for offer in (has_it, has_not))
    assert choose_engine(list(busy)).engine == 2, "much is to be done: a lead will last"
    assert choose_engine([has_it, has_not._replace(cached_tokens=48.0)]).engine == 2, "both have it: the least busy"


def test_no_cache_is_worth_more_than_the_limit():
    behind, idle = Offer(1, MAX_LEAD_TOKENS + 1, 10**6), Offer(2, 0, 0)
    assert choose_engine([behind, idle]) is idle
    assert choose_engine([behind._replace(load_tokens=MAX_LEAD_TOKENS), idle]).engine == 1


@pytest.mark.parametrize("num_recovered", [0.0, 4.0])
def test_an_engine_that_has_started_anew_has_what_it_reports_that_it_recovered(num_recovered: float):
    played = Played(2)
    first = played.router.place(ask(1, LONG))
    played.router.release(1)
    played.show(*(engine(number, state="restarting") for number in (1, 2)))
    played.show(*(engine(number, incarnation=2) for number in (1, 2)))  # it has not beaten yet
    gauges = {"pages_all": 9.0, "pages_recovered": num_recovered}
    played.show(*(engine(number, incarnation=2, gauges=gauges) for number in (1, 2)))
    assert (played.router.place(ask(2, LONG)) == first) == (num_recovered > 0)


def test_an_engine_that_has_left_and_comes_again_has_nothing_cached():
    played = Played(3)
    assert [played.router.place(ask(uid, text)) for uid, text in ((1, "1"), (2, LONG))] == [1, 2]
    for uid in (1, 2):
        played.router.release(uid)
    played.show(engine(1), engine(3))
    played.show(engine(1), engine(2), engine(3))
    assert played.router.place(ask(4, LONG)) == 3, "it was chosen longest ago"


def test_only_engines_that_take_work_get_requests():
    played = Played(3)
    played.show(engine(1), engine(2, is_leaving=True), engine(3, state="restarting"))
    assert {played.router.place(ask(uid, str(uid))) for uid in range(8)} == {1}
    played.show(engine(1, state="restarting"), engine(2, state="starting", is_awaited=True))
    assert played.router.place(ask(9, "9")) == 2, "it is sure to come soon"
    assert played.router.place(msgspec.structs.replace(ask(10, "10"), engine=2), keep=True) == 2


def test_requests_of_other_frontends_count():
    played = Played(2)
    other = ProcessStatus("frontend-2", "ready", uid_block=OWN_BLOCK + 1)
    played.show(other, engine(1, gauges={"requests": 40.0}), engine(2, gauges={"requests": 2.0}))
    assert [played.router.place(ask(uid, str(uid))) for uid in range(3)] == [2, 2, 2]


def test_one_engine_costs_nothing_and_keeps_nothing():
    router = Played(1).router
    assert router.place(ask(1, LONG)) == 1
    assert len(router) == 0


def test_what_is_remembered_is_bounded_and_loses_the_ends_first():
    index, rng = PrefixIndex(max_blocks=20), random.Random(1)
    for _ in range(50):
        index.add(1, [rng.getrandbits(60) for _ in range(12)])
    prompt = list(range(15))
    index.add(1, prompt)
    assert index.count_match(1, prompt) == 15
    index.add(1, [-1, -2, -3, -4, -5, -6, -7, -8, -9, -10])
    assert index.count_match(1, prompt) == 10
    assert index.count_match(2, prompt) == 0


def test_a_chat_with_another_image_has_other_blocks():
    def keys(*images: bytes) -> list[int]:
        parts = [{"type": "image"} for _ in images] + [{"type": "text", "text": "x" * 600}]
        chat = ChatPrompt(msgspec.json.encode([{"role": "user", "content": parts}]))
        inputs = tuple(ImageInput(image, 640, 480) for image in images)
        message = TokenizeMsg(1, 0, None, b"", SamplingParams(1), Stamps(), chat=chat, images=inputs)
        assert estimate_tokens(None, b"", chat, inputs) == estimate_tokens(None, b"", chat) + 300 * len(images)
        return block_keys(message)

    same, other = b"1" * 16, b"2" * 16
    assert keys(same) == keys(same)
    assert keys(same, other)[0] != keys(other, same)[0]
    assert keys(same)[0] != keys(other)[0]


def test_images_go_to_engines_with_an_encoder_alone():
    played = Played(3)
    with_image = msgspec.structs.replace(ask(1, "x"), images=(ImageInput(bytes(16), 1, 1),))
    assert {played.router.place(msgspec.structs.replace(with_image, uid=uid)) for uid in range(3)} == {1, 2, 3}
    played.show(engine(1), engine(2, gauges={"images_cached": 0.0}), engine(3, gauges={"requests": 1.0}))
    for uid in range(3, 9):
        assert played.router.place(msgspec.structs.replace(with_image, uid=uid)) == 2
    assert played.router.place(ask(9, "other")) != 2
