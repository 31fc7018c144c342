"""Where a model's chat template comes from, and the special tokens that it may name."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from messages.errors import BootError
from runtime.special_tokens import read_fields, special_texts

TEMPLATE_FILE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
DEFAULT = "default"

PLAIN_TEMPLATE = """\
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
"""For models without one: each message is a line `role: content`, and the last line is `assistant:`."""

log = logging.getLogger("sluice.runtime")


@dataclass(frozen=True)
class ChatFiles:
    """`templates` by name; a model with one template has it as "default". `special_tokens`: as `bos_token`, by name.

    `response_template` says how its answers are to be read (as in `transformers`), `None` where it does not.
    """

    templates: dict[str, str]
    special_tokens: dict[str, str]
    response_template: Any = None


def read_chat_files(directory: str, template_file: str = "") -> ChatFiles:
    """Returns what the tokenizer in `directory` says, but the template of `template_file` where that is given.

    As in `transformers`, chat_template.jinja goes before tokenizer_config.json. Raises `BootError` where
    `template_file` cannot be read; a file of the model that cannot is as good as none, and is logged.
    """
    folder = Path(directory)
    fields = read_fields(folder)
    config, tokens = fields.config, special_texts(fields)
    own = config.get("response_template")
    if template_file:
        try:
            return ChatFiles({DEFAULT: Path(template_file).read_text(encoding="utf-8")}, tokens, own)
        except (OSError, UnicodeDecodeError) as error:
            raise BootError(f"the chat template {template_file} cannot be read: {error}") from error
    return ChatFiles(_template_files(folder) or _templates_of(config) or {DEFAULT: PLAIN_TEMPLATE}, tokens, own)


def _template_files(folder: Path) -> dict[str, str]:
    files = {DEFAULT: folder / TEMPLATE_FILE} | {
        file.stem: file for file in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    }
    templates: dict[str, str] = {}
    for name, file in files.items():
        try:
            templates[name] = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            log.error("the chat template %s cannot be read: %s", file, error)
    return templates


def _templates_of(config: dict[str, Any]) -> dict[str, str]:
    """`chat_template` is one template or a list of named ones."""
    given = config.get("chat_template")
    if isinstance(given, str):
        return {DEFAULT: given}
    if isinstance(given, list):
        entries: list[Any] = [entry for entry in given if isinstance(entry, dict)]  # pyright: ignore[reportUnknownVariableType]
        return {str(entry.get("name")): str(entry.get("template")) for entry in entries}
    return {}
