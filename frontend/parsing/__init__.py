"""What the text of an answer holds: reasoning, content and calls of tools, told apart while it is written."""
