"""Extras of the frontend are tested in the frontends that its own tests share."""

from tests.frontend.conftest import _reader, _server, reader, server

__all__ = ["_reader", "_server", "reader", "server"]
