import time
from pathlib import Path

import msgspec

from messages.config.server import Config, ModelFacts
from messages.ring.requests import Grammar, Stamps
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.sampling.grammars import RequestGrammar
from scheduler_proc.grammar_builder import GrammarBuilder
from tests.scheduler_proc.clients import user_msg

MODEL_DIR = str(Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2")
MODEL_FACTS = ModelFacts(
    model_dir=MODEL_DIR,
    tokenizer_dir=MODEL_DIR,
    served_names=("m",),
    vocab_size=3072,
    max_model_len=1024,
    eos_token_ids=(0,),
)
TIMEOUT_S = 60.0


def test_the_choices_of_a_request_share_an_account() -> None:
    builder = GrammarBuilder(Config(facts=MODEL_FACTS), lambda: None)
    grammar = Grammar("llguidance", 'start: "a"', "guided_grammar")
    built: dict[int, RequestGrammar] = {}
    for uid, received_ns in ((1, 5), (2, 5), (3, 6)):
        message = msgspec.structs.replace(user_msg(uid, [1], grammar=grammar), stamps=Stamps(received_ns=received_ns))
        builder.start(PendingReq(message, Limits(64, 3072, (0,)), 0))
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(built) < 3 and time.monotonic() < deadline_s:
        for pending, grammar_or_error in builder.pop_built():
            assert isinstance(grammar_or_error, RequestGrammar)
            built[pending.uid] = grammar_or_error
    first, second, other = built[1], built[2], built[3]
    first._account.give_up()
    assert second.error is not None
    assert other.error is None
