"""Prompts to fill in the middle of a text (FIM): the marks of each family of models, and the order of the parts."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from messages.errors import bad_request
from messages.ring.infill import ExtraFile, Infill
from messages.ring.requests import SamplingParams
from runtime.infill_marks import FAMILIES, Marks
from tokenizer_proc.encoding import Encoding

REPOSITORIES = ("<|repo_name|>", "<repo_name>", "<|fim_repo|>")
FILES = ("<|file_sep|>", "<file_sep>", "<|file_separator|>")
OTHER_ENDS = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<|endoftext|>")
"""Tokens that end the middle, in addition to the marks and to those before repositories and files."""

REPOSITORY, CURRENT_FILE, SNIPPET = "myproject\n", "filename\n", "\n\n--- snippet ---\n\n"
"""Names that llama.cpp gives to the repository and to the file with the gap, and its separator for other models."""

FILES_SHARE = 0.75
"""Files are left out of a prompt that would have more than this part of the context."""

LEAD = "☺"
"""A text that no tokenizer joins to what follows."""


class InfillEncoder:
    """Encodes prompts with a gap to fill. `named`: texts of tokens by their names in tokenizer_config.json.

    A GGUF file names such tokens `fim_pre_token`, `fim_suf_token`, and so on; a family in the table takes precedence.
    """

    def __init__(self, encoding: Encoding, named: Mapping[str, str], max_model_len: int):
        self._encoding = encoding
        self._max_files_tokens = int(FILES_SHARE * max_model_len)
        parts = [named.get(f"fim_{part}_token", "") for part in ("pre", "suf", "mid")]
        families = (*FAMILIES, Marks(parts[0], parts[1], parts[2])) if all(parts) else FAMILIES
        self._marks = next(
            (marks for marks in families if None not in map(encoding.id_of, filter(None, marks[:3]))), None
        )
        self._repository = self._ids(*REPOSITORIES, named.get("fim_rep_token", ""))[:1]
        self._file = self._ids(*FILES, named.get("fim_sep_token", ""))[:1]
        marks = self._ids(*(self._marks or ("", "", ""))[:3], *OTHER_ENDS, named.get("fim_pad_token", ""))
        self._ends = tuple(dict.fromkeys(marks + self._repository + self._file))
        self._reserved = {*encoding.special_ids, *self._ends}

    def with_ends(self, params: SamplingParams) -> SamplingParams:
        """Adds the tokens that end the middle, unless end-of-sequence tokens are ignored, too."""
        ends = () if params.ignore_eos else self._ends
        return msgspec.structs.replace(params, stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *ends))))

    def encode(self, prefix: str, infill: Infill, add_special_tokens: bool) -> list[int]:
        """Raises `RequestError` (400) if the model has no such marks. Special tokens in the texts are plain text."""
        marks = self._marks
        if marks is None:
            why = "the model's tokenizer has no tokens to fill in the middle of a text (FIM)"
            raise bad_request(f"{infill.param} is not supported: {why}", infill.param, "not_supported")
        before = self._ids(marks.prefix) + self._plain(prefix)
        after = self._ids(marks.suffix) + self._plain(infill.suffix, is_begin=False)
        begin = self._begin() if add_special_tokens else []
        body = (after + before if marks.is_suffix_first else before + after) + self._ids(marks.middle)
        return begin + self._files(infill.files, self._max_files_tokens - len(begin) - len(body)) + body

    def _files(self, files: Sequence[ExtraFile], room: int) -> list[int]:
        """Returns the last files that fit into `room` tokens, in the form of a repository if the model has one."""
        head = self._repository + self._plain(REPOSITORY) if self._repository and self._file else []
        tail = self._file + self._plain(CURRENT_FILE) if self._file else []
        room -= len(head) + len(tail)
        kept: list[int] = []
        for file in reversed(files):
            text = f"{file.name}\n{file.text}" if self._file else SNIPPET + file.text
            may_fit = len(text) <= room or len(text) <= room * self._encoding.longest_token_chars
            ids = self._file + self._plain(text) if may_fit else []
            if not 0 < len(ids) <= room:
                break
            kept, room = ids + kept, room - len(ids)
        return head + kept + tail if kept else []

    def _plain(self, text: str, *, is_begin: bool = True) -> list[int]:
        """Returns the ids of a text in which nothing is a special token: one that would be is encoded in two pieces.

        Without `is_begin`, SentencePiece's space at the beginning of a text is left out.
        """
        ids = self._bare(text, is_begin=is_begin)
        found = {self._encoding.token_of(token_id) or "" for token_id in self._reserved.intersection(ids)}
        inside = "|".join(f"(?<={re.escape(mark[:1])})(?={re.escape(mark[1:])})" for mark in found if mark[1:])
        if not inside:
            return ids
        first, *others = re.split(inside, text)
        pieces = [self._bare(first, is_begin=is_begin), *(self._bare(piece, is_begin=False) for piece in others)]
        return [token_id for piece in pieces for token_id in piece]

    def _bare(self, text: str, *, is_begin: bool) -> list[int]:
        encode = self._encoding.encode
        if not text or is_begin:
            return encode(text, False) if text else []
        lead = encode(LEAD, False)
        has_space = (self._encoding.token_of(lead[0]) or "").startswith("▁")
        return encode(LEAD + text, False)[len(lead) :] if has_space else encode(text, False)

    def _begin(self) -> list[int]:
        """Returns the special tokens that the tokenizer adds before a text."""
        plain, whole = (self._encoding.encode(LEAD, adds) for adds in (False, True))
        return whole[: whole.index(plain[0])]

    def _ids(self, *tokens: str) -> list[int]:
        """Returns the ids of those that the vocabulary has."""
        return [token_id for token in tokens if token and (token_id := self._encoding.id_of(token)) is not None]
