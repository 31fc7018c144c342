"""Chats, independent of the API: the conversation and the parsed answer."""
