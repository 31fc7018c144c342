"""Extras of the frontend are tested in the frontend that its own tests share."""

from tests.frontend.conftest import _server, server

__all__ = ["_server", "server"]
