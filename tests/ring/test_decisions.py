"""Decisions and vectors of a decoder, as transformers computes them, with the client of `openai`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers
from openai.types.decision import AnswerAnswerResourceChoice

from extras.decisions.endpoint import SYSTEM
from tests.ring.client import TIMEOUT_S, RingClient
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.ring

CONTEXT = 1024
DIGITS = "0123456789"
INPUT = "The parcel came late, and the cup in it is broken. I would like to have my money back, please. " * 3
QUESTIONS: list[Any] = [
    {"type": "choice", "instructions": "The topic.", "choices": [{"value": "late"}, {"value": "broken"}]},
    {"type": "choice", "instructions": "A number.", "choices": [{"value": str(i)} for i in range(27)]},
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(path, CONTEXT)
    return path


@pytest.fixture(scope="module")
def ring(model_dir: Path, start_ring: Any) -> RingClient:
    return start_ring(model_dir, "--dtype", "float32", "--max-num-batched-tokens", "300")


class Reference:
    """The model in transformers; its tokenizer has a token for each byte."""

    def __init__(self, path: Path):
        self._model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))

    def ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def probabilities(self, text: str, labels: Sequence[str]) -> list[float]:
        """Returns the probabilities of tokens after the text as parts of their sum."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([self.ids(text)])).logits[0, -1].double()
        return logits[[self.ids(label)[0] for label in labels]].softmax(0).tolist()

    def vector(self, text: str) -> "np.ndarray[Any, Any]":
        with torch.inference_mode():
            hidden_E = self._model.model(torch.tensor([self.ids(text)]))[0][0, -1]
        return torch.nn.functional.normalize(hidden_E, dim=0).numpy()


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> Reference:
    return Reference(model_dir)


def prompt_of(question: str) -> str:
    """Returns the prompt of a question for a model without a chat template."""
    return f"system: {SYSTEM}\nuser: Input:\n{INPUT}\n\nQuestion: {question}\nassistant:"


@pytest.fixture
def client(ring: RingClient) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{ring.url}/v1", api_key="none") as client:
        yield client


def test_decisions_have_the_probabilities_of_labels(client: openai.OpenAI, reference: Reference):
    model = client.models.list().data[0].id
    choice, number = client.decisions.create(model=model, input=INPUT, questions=QUESTIONS).answers
    assert isinstance(choice, AnswerAnswerResourceChoice)
    assert isinstance(number, AnswerAnswerResourceChoice)
    text = prompt_of(
        "The topic.\n\nWhich of these options fits best?\nA. late\nB. broken\n\nAnswer with its label, from A to B."
    )
    expected = reference.probabilities(text, "AB")
    assert [each.probability for each in choice.probabilities] == pytest.approx(expected, abs=1e-4)
    lines = "\n".join(f"{'ABC'[i // 10]}{i % 10}. {i}" for i in range(27))
    text = prompt_of(
        f"A number.\n\nWhich of these options fits best?\n{lines}\n\nAnswer with its label, from A0 to C6."
    )
    letters, sizes = reference.probabilities(text, "ABC"), (10, 10, 7)
    digits = [reference.probabilities(text + letter, DIGITS[:size]) for letter, size in zip("ABC", sizes, strict=True)]
    expected = [p * share for p, shares in zip(letters, digits, strict=True) for share in shares]
    assert [each.probability for each in number.probabilities] == pytest.approx(expected, abs=1e-4)


def test_a_shared_input_is_computed_once(ring: RingClient, reference: Reference):
    """The steps hold 300 tokens, so that the first of eight questions needs several."""
    body = {"input": INPUT, "questions": QUESTIONS[:1] * 8, "prompt_cache_key": "another"}
    usage = httpx.post(f"{ring.url}/v1/decisions", json=body, timeout=TIMEOUT_S).json()["usage"]
    num_shared = len(reference.ids(prompt_of("").partition("Question")[0]))
    assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert usage["input_tokens"] < 2 * num_shared + 8 * 150
    requests = httpx.get(f"{ring.url}/requests", params={"limit": 8}, timeout=TIMEOUT_S).json()["requests"]
    cached = sorted(request["cached_tokens"] for request in requests)
    assert cached[0] == 0
    assert cached[1] >= num_shared // 16 * 16


def test_labels_that_are_several_tokens_are_refused(ring: RingClient):
    question = {"type": "predicate", "instructions": "It is true."}
    body = {"input": "x", "questions": [question]}
    response = httpx.post(f"{ring.url}/v1/decisions", json=body, timeout=TIMEOUT_S)
    assert response.status_code == 400
    assert "3 tokens of the model, and must have one" in response.json()["error"]["message"]


def test_the_client_of_openai_gets_vectors(client: openai.OpenAI, reference: Reference):
    model = client.models.list().data[0].id
    texts = ["One text.", "Another, which is longer than the first one.", "One text."]
    for fields in ({}, {"encoding_format": "float"}):
        reply = client.embeddings.create(model=model, input=texts, **fields)  # pyright: ignore
        for text, entry in zip(texts, reply.data, strict=True):
            assert entry.embedding == pytest.approx(reference.vector(text), abs=1e-5)
        # Not to the last bit: they may be computed in steps of different sizes.
        assert reply.data[0].embedding == pytest.approx(reply.data[2].embedding, abs=1e-6)
    short = client.embeddings.create(model=model, input=texts[0], dimensions=8)
    expected = reference.vector(texts[0])[:8]
    assert short.data[0].embedding == pytest.approx(expected / np.linalg.norm(expected), abs=1e-5)
