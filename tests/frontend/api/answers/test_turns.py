from frontend.api.answers.chat_messages import ChatMessage, ContentPart, image_content
from frontend.api.answers.turns import UNREAD, Turns
from frontend.images.parts import ImagePart

IMAGES = [ImagePart(f"messages[{index}]", f"data:{index}") for index in range(3)]


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
    turns.result("1", ["one"])
    turns.result("2", [])
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


def test_images_keep_their_place_between_texts():
    turns = Turns(reads_images=True)
    turns.show("user", IMAGES[0], "a", "b")
    turns.show("user", "c", IMAGES[1])
    turns.result("1", ["one", IMAGES[2]])
    shown = [image_content(image) for image in IMAGES]
    assert turns.messages == [
        ChatMessage(role="user", content=[shown[0], ContentPart("text", "a\n\nb\n\nc"), shown[1]]),
        ChatMessage(role="tool", content=[ContentPart("text", "one"), shown[2]], tool_call_id="1"),
    ]


def test_a_model_of_text_gets_a_sentence_in_place_of_an_image_of_a_tool():
    turns = Turns(reads_images=False)
    turns.result("1", ["one", IMAGES[0]])
    assert turns.messages == [ChatMessage(role="tool", content=f"one\n\n{UNREAD}", tool_call_id="1")]


def test_many_pieces_are_joined_once():
    """Copying all earlier calls for each new one made 200,000 calls take minutes."""
    turns = Turns()
    for number in range(200_000):
        turns.call(str(number), "f", "{}")
        turns.show("assistant", "x" * 50)
    (message,) = turns.messages
    assert len(message.tool_calls or ()) == 200_000
