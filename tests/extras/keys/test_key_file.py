"""The file of `--api-keys`: every mistake names its line and field."""

from pathlib import Path

import pytest

from extras.keys.key_file import MAX_FILE_BYTES, KeyEntry, hash_of, new_key, parse_keys, read_key_file
from messages.errors import UsageError

HASH = hash_of("sk-one")
OTHER = hash_of("sk-two")

WHOLE = f"""
# a comment
[team-a]
hash = "{HASH}"
admin = true
models = ["m", "poems-*"]
requests_per_minute = 60
tokens_per_minute = 100_000
max_running = 4
share = 2
priority = -1

[team_B2]
hash = "{OTHER}"
"""


def test_a_whole_file():
    keys = parse_keys(WHOLE)
    assert list(keys) == ["team-a", "team_B2"]
    assert keys["team-a"] == KeyEntry(
        hash=HASH,
        admin=True,
        models=("m", "poems-*"),
        requests_per_minute=60,
        tokens_per_minute=100_000,
        max_running=4,
        share=2,
        priority=-1,
    )
    assert keys["team_B2"] == KeyEntry(hash=OTHER)
    assert not parse_keys("")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hash = 5", "line 2: a.hash: expected `str`, got `int`"),
        (f"hash = '{HASH.upper()}'", "line 2: a.hash: it must be sha256: and 64 hexadecimal digits in lower case"),
        ("hash = 'sk-plain'", "line 2: a.hash: it must be sha256:"),
        ("admin = 'yes'", "line 3: a.admin: expected `bool`, got `str`"),
        ("models = 'm'", "line 3: a.models: expected `array`, got `str`"),
        ("models = ['m', 3]", r"line 3: a.models\[1\]: expected `str`, got `int`"),
        ("models = ['']", r"line 3: a.models\[0\]: expected `str` of length >= 1"),
        ("requests_per_minute = 0", "line 3: a.requests_per_minute: expected `int` >= 1"),
        ("tokens_per_minute = 1.5", "line 3: a.tokens_per_minute: expected `int.*`, got `float`"),
        ("max_running = -1", "line 3: a.max_running: expected `int` >= 1"),
        ("share = 0", "line 3: a.share: expected `int` >= 1"),
        ("share = 1001", "line 3: a.share: expected `int` <= 1000"),
        ("priority = 'low'", "line 3: a.priority: expected `int.*`, got `str`"),
        ("priority = 2024-01-01", "line 3: a.priority: expected"),
        ("rate = 3", "line 3: a.rate: there is no such field; fields are hash, admin"),
        ("share = ", "line 3: it is not TOML"),
        ("share = 1\nshare = 2", "line 4: it is not TOML"),
    ],
)
def test_a_mistake_names_its_line_and_field(line: str, message: str, tmp_path: Path):
    lines = ["[a]", line] if line.startswith("hash") else ["[a]", f'hash = "{HASH}"', line]
    file = tmp_path / "keys.toml"
    file.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=message) as error:
        read_key_file(file)
    assert str(error.value).startswith(f"{file}, line ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\n", "line 1: a.hash: it is missing"),
        (f'\n["a b"]\nhash = "{HASH}"', "line 2: 'a b' is not a name"),
        (f'\n["10.0.0.1"]\nhash = "{HASH}"', "line 2: '10.0.0.1' is not a name"),
        (f'[{"a" * 65}]\nhash = "{HASH}"', "line 1: 'a+' is not a name"),
        ("share = 3", "line 1: share: a key is a table"),
        (f'[a]\nhash = "{HASH}"\n[b]\nhash = "{HASH}"', "line 4: b.hash: it is that of a, too"),
        (f'[a]\nhash = "{HASH}"\n[a.b]\nshare = 1', "line 1: a.b: there is no such field"),
        (f'a = {{hash = "{HASH}", share = 0}}', "line 1: a.share: expected"),
        ("a = [[[" * 20_000, "line 1: it is not TOML"),
    ],
)
def test_other_mistakes(text: str, message: str):
    with pytest.raises(UsageError, match=message):
        parse_keys(text)


def test_files_that_cannot_be_read(tmp_path: Path):
    file = tmp_path / "keys.toml"
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_key_file(file)
    file.write_bytes(b"[a]\n# \xff")
    with pytest.raises(UsageError, match="line 2: it is not text in UTF-8"):
        read_key_file(file)
    file.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(UsageError, match="larger than 16 MiB"):
        read_key_file(file)
    file.write_text("".join(f'[k{index}]\nhash = "sha256:{index:064x}"\n' for index in range(10_001)))
    with pytest.raises(UsageError, match="line 20001: more than 10000 keys"):
        read_key_file(file)


def test_keys_are_random():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == len("sk-sluice-") + 43 and key.isprintable() for key in keys)
