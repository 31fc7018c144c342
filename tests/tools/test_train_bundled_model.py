"""The trainer of the bundled model learns, resumes exactly, and exports what transformers loads."""

import importlib
import json
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS = Path(__file__).resolve().parents[2] / "tools"
OPTIONS = shlex.split(
    "--vocab-size 320 --context 64 --n-embd 32 --n-layer 2 --n-head 2 --batch-tokens 256 --split-share 0.1"
    " --lr 5e-3 --warmup-steps 2 --max-steps 20 --eval-every 5 --threads 1"
)
ODD_TEXTS = ["", " ", "a  b \n\n c", "naïve – “quoted”", "日本語 🙂👩‍👩‍👧", "\x00\x7f\r\n\t", "é\u0301 ﷽"]


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    """The tool as a module, found as when it runs as a script; torch's settings return afterwards."""
    num_threads = torch.get_num_threads()
    importlib.import_module("numpy.ma")  # it queries the limits of floats, which warns if denormals are flushed
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        yield importlib.import_module("train_bundled_model")
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(False)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text with learnable order: paragraphs of a few words in a few arrangements."""
    rng = np.random.default_rng(0)
    words = ["love", "night", "naïve", "thou art", "the king,", "my lord", "speaks"]
    paragraphs = [f"{rng.choice(['ANNA', 'BÉLA'])}:\n" + " ".join(rng.choice(words, size=8)) + "." for _ in range(250)]
    path = tmp_path_factory.mktemp("text") / "plays.txt"
    path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole_run(tool: ModuleType, text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run: checkpoint/ and model/."""
    folder = tmp_path_factory.mktemp("whole")
    assert tool.main(command(text_file, folder)) == 0
    return folder


def command(text_file: Path, folder: Path) -> list[str]:
    return [str(text_file), "--out", f"{folder}/model", "--checkpoint-dir", f"{folder}/checkpoint", *OPTIONS]


def load_state(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint" / "checkpoint.pt", weights_only=True)


def test_loss_falls(whole_run: Path) -> None:
    history = load_state(whole_run)["record"]["history"]
    assert [step for step, _, _ in history] == [5, 10, 15, 20]
    assert history[-1][1] < history[0][1] - 0.5
    assert history[-1][2] < history[0][2] - 0.3


def test_resumed_run_equals_an_uninterrupted_one(
    tool: ModuleType,
    text_file: Path,
    whole_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    learning_rate = tool.learning_rate

    def interrupt_at_step_7(config: Any, step: int) -> float:
        if step == 7:
            signal.raise_signal(signal.SIGTERM)
        return learning_rate(config, step)

    with monkeypatch.context() as patch:
        patch.setattr(tool, "learning_rate", interrupt_at_step_7)
        tool.main(command(text_file, tmp_path))
    assert load_state(tmp_path)["step"] == 8
    capsys.readouterr()
    tool.main(command(text_file, tmp_path))
    assert "resumes at step 8" in capsys.readouterr().out
    expected, found = load_state(whole_run)["model"], load_state(tmp_path)["model"]
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    assert "from step 8:" in (tmp_path / "model" / "README.md").read_text()


def test_text_that_is_too_short_is_refused(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a")
    with pytest.raises(SystemExit, match="too short"):
        tool.main(command(tmp_path / "text", tmp_path))


def test_time_limit_stops_and_exports(tool: ModuleType, text_file: Path, tmp_path: Path) -> None:
    tool.main([*command(text_file, tmp_path), "--minutes", "1e-6"])
    assert load_state(tmp_path)["step"] == 1
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_export_loads_in_transformers(whole_run: Path) -> None:
    folder = whole_run / "model"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert config["activation_function"] == "gelu_new"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert config["eos_token_id"] == config["bos_token_id"] == tokenizer.eos_token_id
    assert model.config.vocab_size == len(tokenizer)
    weights = load_state(whole_run)["best_weights"]
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, weights[name].half().float(), rtol=0, atol=0)
    output_ids = model.generate(**tokenizer("ANNA:\n", return_tensors="pt"), max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(output_ids[0]).startswith("ANNA:\n")
    assert "held-out" in (folder / "README.md").read_text()


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_text_comes_back(whole_run: Path, text: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole_run / "model")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(max_size=60), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_undoing_merges_keeps_the_text(tool: ModuleType, text: str, seed: int) -> None:
    words = importlib.import_module("bundled_text")
    tokenizer = words.train_tokenizer("the king speaks, the night speaks, my lord" * 3, 300)
    ids = np.array(tokenizer.encode(text + "the king speaks").ids)
    split = words.undo_merges(ids, words.read_merges(tokenizer), 0.5, np.random.default_rng(seed))
    assert len(split) >= len(ids)
    assert tokenizer.decode(split.tolist(), skip_special_tokens=False) == text + "the king speaks"


def test_held_out_windows_predict_every_token_once(tool: ModuleType, text_file: Path) -> None:
    words = importlib.import_module("bundled_text")
    text = text_file.read_text(encoding="utf-8")
    corpus = words.build_corpus(text, words.train_tokenizer(text, 320), 0.1)
    targets = torch.cat([target[0] for _, target in words.held_out_windows(corpus, 64)])
    assert targets.tolist() == corpus.held_out_ids.tolist()
