"""In which form a chat template reads a message's content: as one text, or as a list of parts.

Told from the template itself, as vLLM does: one that loops over the content of a message expects parts.
"""

from typing import Any

from jinja2 import nodes

CONTENT = "content"


class ContentFormat:
    """What the template whose syntax tree is `tree` can read. `reads_parts`: it loops over them."""

    def __init__(self, tree: nodes.Template):
        names = _content_names(tree)
        self.reads_parts = any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
        self._reads_text = not self.reads_parts or any(
            test.name == "string" and _is_content(test.node, names) for test in tree.find_all(nodes.Test)
        )

    def adapt(self, message: dict[str, Any]) -> dict[str, Any]:
        """Returns the message with its content in a form the template reads; texts of parts are joined by newlines."""
        content: Any = message.get(CONTENT)
        if isinstance(content, list) and not self.reads_parts:
            parts: list[Any] = content  # pyright: ignore[reportUnknownVariableType]
            texts = [str(part.get("text", "") if isinstance(part, dict) else part) for part in parts]  # pyright: ignore
            return message | {CONTENT: "\n".join(texts)}
        if isinstance(content, str) and not self._reads_text:
            return message | {CONTENT: [{"type": "text", "text": content}]}
        return message


def _content_names(tree: nodes.Template) -> set[str]:
    """Returns the variables and macro parameters that may stand for a message's content."""
    names: set[str] = set()
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    while True:
        num_before = len(names)
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names):
                names.add(assign.target.name)
        for call in tree.find_all(nodes.Call):
            macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
            if macro is not None:
                pairs = zip(macro.args, call.args, strict=False)
                names |= {parameter.name for parameter, value in pairs if _is_content(value, names)}
        if len(names) == num_before:
            return names


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Whether the expression is a message's content, or one of `names`, perhaps filtered or sliced."""
    while isinstance(node, nodes.Filter) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == CONTENT
    if isinstance(node, nodes.Getattr):
        return node.attr == CONTENT
    return isinstance(node, nodes.Name) and node.name in names
