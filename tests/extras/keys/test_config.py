"""The flags of keys with names."""

from pathlib import Path

import pytest

from extras.keys.config import KeysConfig
from extras.keys.key_file import hash_of
from messages.errors import UsageError
from tests.frontend.frontend_run import make_config


def test_paths_are_absolute_and_the_usage_is_next_to_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("keys.toml").write_text(f'[a]\nhash = "{hash_of("a")}"\n')
    section = KeysConfig.of(KeysConfig(api_keys="keys.toml").check(make_config()))
    assert (section.api_keys, section.usage_path) == (str(tmp_path / "keys.toml"), tmp_path / "keys.toml.usage")
    section = KeysConfig.of(KeysConfig(api_keys="keys.toml", key_usage="u").check(make_config()))
    assert section.usage_path == tmp_path / "u"
    assert KeysConfig().check(make_config()) == make_config()


def test_mistakes_are_refused_before_anything_starts(tmp_path: Path):
    with pytest.raises(UsageError, match=r"--api-keys: .*none.toml cannot be read"):
        KeysConfig(api_keys=str(tmp_path / "none.toml")).check(make_config())
    (tmp_path / "bad.toml").write_text("[a]\nhash = 1\n")
    with pytest.raises(UsageError, match=r"--api-keys: .*bad.toml, line 2: a.hash"):
        KeysConfig(api_keys=str(tmp_path / "bad.toml")).check(make_config())
    with pytest.raises(UsageError, match="--key-usage needs --api-keys"):
        KeysConfig(key_usage="u").check(make_config())
