"""How models of each kind score pairs: by the cosine of vectors, by their head, or by yes and no."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from extras.embeddings.pooled_requests import PooledCalls
from extras.embeddings.rerank import RerankBody
from extras.embeddings.scores import ScoreOptions, Scorer, Scoring, reads_pairs
from frontend.api.answers.conversation import Conversations
from frontend.extras import FrontendContext
from frontend.http.field_names import UnknownFields
from frontend.parsing.model_format import load_model_format
from frontend.requests.generation import Generation
from frontend.service import Service
from messages.columns import pack_float32, pack_int32
from messages.config.pooling import PoolingFacts
from messages.config.server import Config
from messages.errors import RequestError
from messages.ring.replies import PooledReply
from messages.ring.requests import ChatPrompt, Pooling
from runtime.chat_files import read_chat_files
from tests.frontend.frontend_run import make_config
from tokenizer_proc.chat import ChatTemplates

QWEN_3 = Path(__file__).parents[2] / "tokenizer_proc" / "golden" / "Qwen-Qwen3-0.6B.jinja"

PAIR_TEMPLATE = """\
{%- set told = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("DEFAULT") -%}
[{{ told }}|{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}|\
{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}]"""
"""A chat template as published rerankers have it: a role for each text of a pair."""

PAIRS = [("q", "a"), ("q", "b")]
BODY = RerankBody(query="q", documents=["a", "b"])


def scorer_of(directory: Path, facts: PoolingFacts | None, template: str) -> tuple[Scorer, Config]:
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    config = make_config()
    config = msgspec.structs.replace(
        config, facts=msgspec.structs.replace(config.facts, pooling=facts, tokenizer_dir=str(directory))
    )
    service = cast("Service", SimpleNamespace(config=config))
    context = cast("FrontendContext", SimpleNamespace(service=service, unknown=UnknownFields()))
    return Scorer(PooledCalls(context), Conversations(service, load_model_format(config)), config), config


def scores_of(scoring: Scoring, *results: Sequence[float]) -> list[float]:
    """Returns the scores if these are the numbers of the requests."""
    rows: list[Generation] = []
    for request, values in zip(scoring.requests, results, strict=True):
        row = Generation(next(iter(request.messages(0))), "id")
        row.pooled = PooledReply(row.uid, 0, pack_float32(values))
        rows.append(row)
    return scoring.scores(rows)


def rendered(scoring: Scoring, config: Config) -> list[str]:
    """Returns the prompts as the tokenizer renders them."""
    templates = ChatTemplates(read_chat_files(config.facts.tokenizer_dir))
    return [templates.render(cast("ChatPrompt", request.prompt)) for request in scoring.requests]


def test_vectors_are_compared_each_text_once(tmp_path: Path):
    facts = PoolingFacts(kind="embed", prompts={"query": "Q: ", "passage": "P: "})
    scorer, _ = scorer_of(tmp_path, facts, "")
    scoring = scorer.score(BODY, [*PAIRS, ("q", "a")], ScoreOptions())
    assert [request.prompt for request in scoring.requests] == ["P: a", "P: b", "Q: q"]
    assert scoring.places == ["documents[2]", "documents[1]", "query[2]"]
    assert scores_of(scoring, [0.6, 0.8], [0, -1], [1, 0]) == pytest.approx([0.6, 0.0, 0.6])
    symmetric = scorer.score(BODY, [("a", "a")], ScoreOptions((None, None)))
    assert scores_of(symmetric, [1.0000001, 0.0]) == [1.0]


@pytest.mark.parametrize(
    ("activation", "is_raw", "expected"),
    [(None, False, 1 / (1 + math.exp(-2))), ("identity", False, 2.0), ("sigmoid", True, 2.0)],
)
def test_a_cross_encoder_has_one_logit_for_a_pair(tmp_path: Path, activation: Any, is_raw: bool, expected: float):
    facts = PoolingFacts(kind="classify", labels=("LABEL_0",), score_activation=activation)
    scorer, _ = scorer_of(tmp_path, facts, "")
    scoring = scorer.score(BODY, PAIRS, ScoreOptions(is_raw=is_raw))
    assert [(request.prompt, request.text_pair) for request in scoring.requests] == PAIRS
    assert scores_of(scoring, [2], [-800])[0] == pytest.approx(expected)


def test_several_labels_make_no_score(tmp_path: Path):
    scorer, _ = scorer_of(tmp_path, PoolingFacts(kind="classify", labels=("a", "b", "c")), "")
    with pytest.raises(RequestError, match="one label, this one has 3"):
        scorer.score(BODY, PAIRS, ScoreOptions())


def test_a_reranker_answers_under_its_own_template(tmp_path: Path):
    scorer, config = scorer_of(tmp_path, PoolingFacts(score_token_ids=(9693, 2152)), PAIR_TEMPLATE)
    scoring = scorer.score(BODY, PAIRS, ScoreOptions())
    assert rendered(scoring, config) == ["[DEFAULT|q|a]", "[DEFAULT|q|b]"]
    assert scoring.requests[0].params.pooling == Pooling("labels", label_ids=pack_int32([9693, 2152]))
    yes, no = math.log(0.003), math.log(0.001)  # most of the probability is elsewhere
    assert scores_of(scoring, [yes, no], [-50, -900]) == pytest.approx([0.75, 1.0])
    reported = scorer.score(BODY, PAIRS, ScoreOptions(instruction="find poems"))
    assert rendered(reported, config)[0] == "[find poems|q|a]"


def test_a_head_behind_a_template_for_pairs(tmp_path: Path):
    facts = PoolingFacts(kind="classify", labels=("LABEL_0",), prompts={"web": "search"}, default_prompt="web")
    scorer, config = scorer_of(tmp_path, facts, PAIR_TEMPLATE)
    scoring = scorer.score(BODY, PAIRS, ScoreOptions())
    assert rendered(scoring, config)[0] == "[search|q|a]"
    assert scoring.requests[0].params.pooling == Pooling("classify")


def test_a_chat_model_gets_the_prompt_of_qwen3_reranker(tmp_path: Path):
    """The expected text is that of the model's card, for files without a template of their own for pairs."""
    scorer, config = scorer_of(tmp_path, None, QWEN_3.read_text(encoding="utf-8"))
    scoring = scorer.score(BODY, [("What is the capital of China?", "Beijing.")], ScoreOptions())
    assert scoring.requests[0].params.pooling == Pooling("labels", label_texts=("yes", "no"))
    assert rendered(scoring, config) == [
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: What is the capital of China?\n<Document>: Beijing.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ]


@pytest.mark.parametrize(
    ("facts", "template", "body", "options", "expected"),
    [
        (PoolingFacts(kind="embed"), "", BODY, ScoreOptions(instruction="x"), "takes no instruction"),
        (PoolingFacts(score_token_ids=(7,)), "", BODY, ScoreOptions(), "one token"),
        (
            None,
            PAIR_TEMPLATE,
            RerankBody(query="q", documents=["a"], truncate_prompt_tokens=-1),
            ScoreOptions(),
            "truncate_prompt_tokens",
        ),
    ],
)
def test_refusals(tmp_path: Path, facts: Any, template: str, body: RerankBody, options: ScoreOptions, expected: str):
    scorer, _ = scorer_of(tmp_path, facts, template)
    with pytest.raises(RequestError, match=expected):
        scorer.score(body, PAIRS, options)


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        ("{% if role == 'query' %}{% elif role == \"document\" %}", True),
        ('"document" "query"', True),
        ("'query'", False),
        ("query document", False),
    ],
)
def test_a_template_of_rerankers_is_known_by_both_roles(template: str, reads: bool):
    assert reads_pairs(template) == reads


def test_a_template_of_any_size_is_searched_in_linear_time():
    begin_s = time.thread_time()
    assert not reads_pairs("'query' " * 1_000_000)
    assert time.thread_time() - begin_s < 1
