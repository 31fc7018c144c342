import pytest

from frontend.requests.client import client_at
from tests.frontend.frontend_run import FrontendRun, final


@pytest.mark.parametrize(
    ("peer", "forwarded", "is_private", "name"),
    [
        (("10.0.0.1", 5), [], False, "10.0.0.1"),
        (("10.0.0.1", 5), [b"10.0.0.2"], False, "10.0.0.1"),
        (("127.0.0.1", 0), [], True, "127.0.0.1"),
        (("127.0.0.1", 0), [b"made up", b"10.0.0.2"], True, "10.0.0.2"),
        (("127.0.0.1", 0), [b"\xff" + b"a" * 100], True, "a" * 64),
        (None, [], False, ""),
    ],
)
def test_a_client_without_a_key_is_its_address(
    peer: tuple[str, int] | None, forwarded: list[bytes], is_private: bool, name: str
):
    client = client_at(peer, [(b"x-forwarded-for", value) for value in forwarded], is_private=is_private)
    assert (client.name, client.share) == (name, 1)


def test_the_client_of_a_request_is_in_its_message():
    with FrontendRun() as run, run.call({"stream": False}) as call:
        message = run.take_request()
        assert (message.client, message.share) == ("127.0.0.1", 1)
        run.send(final(message, "ok", (1,)))
        assert call.response.status == 200
