import pytest

from frontend.requests.client import Client, address_of
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
    headers = [(b"x-forwarded-for", value) for value in forwarded]
    assert address_of(peer, headers, is_private=is_private) == name


def test_what_a_client_may():
    client = Client(name="a", key="a", models=("m", "poems-*"), priority=5, sees_all=False)
    assert client.usable(["m", "n", "poems-", "poems-x", "poem", "M"]) == ["m", "poems-", "poems-x"]
    assert client.may_use(("org/m", "m"))
    assert not client.may_use(("org/m",))
    assert [client.bounded(priority) for priority in (-1, 5, 6)] == [5, 5, 6]
    assert [client.sees(key) for key in ("a", "b", "")] == [True, False, False]
    assert all(Client().sees(key) for key in ("a", ""))
    assert Client().bounded(-1) == -1


def test_the_client_of_a_request_is_in_its_message():
    with FrontendRun() as run, run.call({"stream": False}) as call:
        message = run.take_request()
        assert (message.client, message.share) == ("127.0.0.1", 1)
        run.send(final(message, "ok", (1,)))
        assert call.response.status == 200
