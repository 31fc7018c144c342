import os
from pathlib import Path

import msgspec
import pytest

from messages.config.server import Config, HttpConfig, ModelFacts, RunConfig
from messages.errors import SluiceError, UsageError
from supervisor.manifest import claim_recording, identify_model, make_manifest, read_manifest, write_manifest


def config_of(model_dir: Path) -> Config:
    facts = ModelFacts(
        model_dir=str(model_dir), tokenizer_dir=str(model_dir), served_names=("m",), vocab_size=9, max_model_len=9
    )
    return Config(facts=facts, http=HttpConfig(api_key=("sesame",), admin_key=("sesame",)), run=RunConfig(record="/r"))


def test_a_manifest_is_read_as_it_was_written_and_holds_no_keys(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    manifest = make_manifest(config_of(tmp_path))
    write_manifest(tmp_path / "recording", manifest)
    assert read_manifest(tmp_path / "recording") == manifest
    assert b"sesame" not in (tmp_path / "recording" / "manifest.json").read_bytes()
    assert (tmp_path / "recording").stat().st_mode & 0o077 == 0
    assert [file.name for file in manifest.model_files] == ["model.safetensors"]
    assert "torch" in manifest.libraries


@pytest.mark.parametrize("place", [0, 250_000, 299_999])
def test_other_weights_are_others(tmp_path: Path, place: int):
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(300_000))
    before = identify_model(tmp_path)
    with file.open("r+b") as stream:
        stream.seek(place)
        stream.write(b"x")
    assert identify_model(tmp_path) != before


def test_a_directory_without_a_manifest_is_no_recording(tmp_path: Path):
    with pytest.raises(SluiceError, match="is not a recording"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode({"version": 1}))
    with pytest.raises(SluiceError, match="another version"):
        read_manifest(tmp_path)


def test_a_recording_needs_a_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert claim_recording("a/b") == tmp_path / "a" / "b"
    (tmp_path / "a" / "b" / "file").touch()
    with pytest.raises(UsageError, match=r"--record: .*b is not empty; choose a new directory"):
        claim_recording("a/b")
    with pytest.raises(UsageError, match="cannot be used: File exists"):
        claim_recording("a/b/file")


def test_a_recording_goes_into_a_directory_of_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "new").mkdir()
    (tmp_path / "new").chmod(0o777)
    assert claim_recording(str(tmp_path / "new")).stat().st_mode & 0o077 == 0
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(UsageError, match="it is not a directory"):
        claim_recording(str(tmp_path / "link"))
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(UsageError, match="it belongs to another user"):
        claim_recording(str(tmp_path / "new"))
