"""Chats, whatever the API: the conversation, and the answer as it is parsed."""
