import math
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.experiments.quantization_0018.bench_quantization import FORMATS, main, measure_perplexity
from benchmarks.experiments.quantization_0018.text_score import score_text
from benchmarks.load.connection import Target
from benchmarks.load.server_facts import ServerUnavailableError
from tests.tiny_llama import write_tokenizer

THIN = ["--cpu-threads", "1", "--num-pages", "64", "--log-level", "warning"]
TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 4


def test_no_server_is_an_error() -> None:
    with pytest.raises(ServerUnavailableError, match=r"127\.0\.0\.1:1/tokenize"):
        score_text(Target("127.0.0.1", 1, timeout_s=1.0), "m", "text", 8)


def test_models_need_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--models", "m"])
    assert "--models needs --text" in capsys.readouterr().err


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    assert main(["--models", str(tmp_path / "none"), "--text", str(tmp_path / "text")]) == 1
    assert "bench_quantization:" in capsys.readouterr().err


@pytest.mark.ring
def test_perplexity_is_that_of_the_served_model(tmp_path: Path) -> None:
    # Imported here and not above: every worker of `-m ring` imports this module, and only this test needs torch.
    import torch
    from torch.nn.functional import cross_entropy

    from tests.checkpoints import build_checkpoint

    model = build_checkpoint(tmp_path, "gpt2")
    write_tokenizer(tmp_path)
    formats = {name: FORMATS[name] for name in ("float32", "int8")}
    exact, near = measure_perplexity(tmp_path, TEXT, THIN, formats)
    assert (exact["passage_tokens"], exact["num_tokens"]) == (95, 3 * 94)
    ids = torch.tensor(Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(TEXT).ids[: 3 * 95]).view(3, 95)
    with torch.no_grad():
        expected = cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert exact["nats"] == pytest.approx(float(expected), abs=1e-3)
    assert exact["perplexity"] == pytest.approx(math.exp(exact["nats"]))
    assert 0 < abs(near["nats"] - exact["nats"]) < 0.05
