import sys
from pathlib import Path

import pytest

from messages.config import Config, ModelFacts
from messages.errors import BootError
from supervisor.remote.ray_placement import RayPlacement


def test_without_ray_the_operator_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "ray", None)
    facts = ModelFacts(model_dir="/m", tokenizer_dir="/m", served_names=("a",), vocab_size=1, max_model_len=9)
    with pytest.raises(BootError, match=r"--ray needs more: pip install 'sluice\[ray\]'"):
        RayPlacement(Config(facts=facts), 7001, tmp_path / "join.key")
