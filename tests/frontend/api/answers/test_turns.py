from frontend.api.answers.chat_messages import ChatMessage
from frontend.api.answers.turns import Turns


def test_pieces_of_one_role_are_one_message():
    turns = Turns()
    turns.show("developer", "")
    turns.show("system", "Be short.")
    turns.show("user", "a")
    turns.show("user", "")
    turns.show("user", "b")
    turns.think("so")
    turns.call("1", "f", "{}")
    turns.call("2", "g", {"x": 1})
    turns.result("1", "one")
    turns.result("2", "")
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"x": 1}}},
    ]
    assert turns.messages == [
        ChatMessage(role="system", content="Be short."),
        ChatMessage(role="user", content="a\n\n\n\nb"),
        ChatMessage(role="assistant", reasoning_content="so", tool_calls=calls),
        ChatMessage(role="tool", content="one", tool_call_id="1"),
        ChatMessage(role="tool", content="", tool_call_id="2"),
    ]


def test_many_pieces_are_joined_once():
    """Copying all earlier calls for each new one made 200,000 calls take minutes."""
    turns = Turns()
    for number in range(200_000):
        turns.call(str(number), "f", "{}")
        turns.show("assistant", "x" * 50)
    (message,) = turns.messages
    assert len(message.tool_calls or ()) == 200_000
