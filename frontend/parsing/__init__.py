"""Parses the text of an answer, while it is generated, into reasoning, content and tool calls."""
