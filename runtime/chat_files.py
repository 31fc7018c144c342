"""Reads a model's chat templates and the special tokens that they may use."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from messages.errors import BootError
from runtime.special_tokens import read_fields, read_fields_of, special_texts

TEMPLATE_FILE = "chat_template.jinja"
OLD_FILE = "chat_template.json"
MORE_TEMPLATES = "additional_chat_templates"
DEFAULT = "default"

PLAIN_TEMPLATE = """\
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
"""The template for models without one: a line `role: content` per message, and `assistant:` at the end."""

log = logging.getLogger("sluice.runtime")


@dataclass(frozen=True)
class ChatFiles:
    """`templates` by name, "default" if a model has only one. `special_tokens` by name, such as `bos_token`.

    `response_template` defines how to parse the model's answers (as in `transformers`); `None` if it is not given.
    `image_marker` and `image_part`: the fields of the model's `Rule`, empty if it reads no images.
    """

    templates: dict[str, str]
    special_tokens: dict[str, str]
    response_template: Any = None
    image_marker: str = ""
    image_part: str = ""

    @property
    def has_template(self) -> bool:
        return self.templates.get(DEFAULT) != PLAIN_TEMPLATE


def read_chat_files(directory: str, template_file: str = "") -> ChatFiles:
    """Reads the chat files in `directory`, with the template in `template_file` instead of the model's, if given.

    As in `transformers`, chat_template.jinja takes precedence over tokenizer_config.json, and that over the
    chat_template.json of a model of images and text. Raises `BootError` if
    `template_file` cannot be read; unreadable files of the model are logged and ignored.
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
    templates = _template_files(folder) or _templates_of(config) or _templates_of(read_fields_of(folder / OLD_FILE))
    return ChatFiles(templates or {DEFAULT: PLAIN_TEMPLATE}, tokens, own)


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
    provided = config.get("chat_template")
    if isinstance(provided, str):
        return {DEFAULT: provided}
    if isinstance(provided, list):
        entries: list[Any] = [entry for entry in provided if isinstance(entry, dict)]  # pyright: ignore[reportUnknownVariableType]
        return {str(entry.get("name")): str(entry.get("template")) for entry in entries}
    return {}
