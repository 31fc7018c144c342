"""The flags of keys with names."""

from pathlib import Path

import pytest

from extras.keys.config import KeysConfig
from extras.keys.key_file import hash_of
from messages.errors import UsageError
from tests.frontend.frontend_run import make_config


def check(*names: object) -> KeysConfig:
    return KeysConfig.of(KeysConfig(api_keys=tuple(map(str, names))).check(make_config()))


def test_paths_are_absolute_and_the_usage_is_next_to_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("keys.toml").write_text(f'[a]\nhash = "{hash_of("a")}"\n')
    section = check("keys.toml")
    assert (section.key_file, section.usage_file) == (tmp_path / "keys.toml", tmp_path / "keys.toml.usage")
    assert check("keys.toml", "u").usage_file == tmp_path / "u"
    assert KeysConfig().check(make_config()) == make_config()
    assert KeysConfig().key_file is None


def test_mistakes_are_refused_before_anything_starts(tmp_path: Path):
    with pytest.raises(UsageError, match=r"--api-keys: .*none.toml cannot be read"):
        check(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[a]\nhash = 1\n")
    with pytest.raises(UsageError, match=r"--api-keys: .*bad.toml, line 2: a.hash"):
        check(tmp_path / "bad.toml")
    with pytest.raises(UsageError, match="at most, one for their usage"):
        check("a", "b", "c")
