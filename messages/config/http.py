"""The part of the configuration that is about HTTP (`messages/config/server.py`)."""

from typing import Annotated

import msgspec
from msgspec import Meta

from messages.config.flag import Flag, NonNegativeFloat, NonNegativeInt, PositiveFloat

KEY_FIELDS = ("api_key", "admin_key")
"""Of `HttpConfig`: what must not be shown."""


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP"""

    host: Annotated[str, Flag("address to listen on; 0.0.0.0 for all")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), Flag("port to listen on; 0: any free one")] = 8000
    is_private: bool = False
    """It listens on a Unix socket in the run directory, which only this user can reach. Not a flag."""
    sse_keepalive_s: Annotated[
        PositiveFloat, Flag("seconds of silence after which a stream sends a keep-alive comment")
    ] = 15.0
    max_body_mb: Annotated[
        PositiveFloat,
        Flag(
            "maximum size of a request body in MiB; if the model reads images, one of --max-image-mb in base64 always "
            "fits"
        ),
    ] = 16.0
    max_bodies_mb: float = 0.0
    """MiB for the bodies of all requests that are open or still arriving; 0: 16 of the largest. Not a flag."""
    strict_fields: Annotated[
        bool, Flag("reject request bodies with unknown fields, including fields of other servers' APIs")
    ] = False
    allow_additional_properties: Annotated[
        bool,
        Flag(
            "structured output: objects may have properties beyond those in their JSON schema unless it forbids them "
            "(default: only if the schema allows them)"
        ),
    ] = False
    request_timeout_s: Annotated[
        PositiveFloat | None,
        Flag("seconds after which a request without its own timeout_s ends with the output so far (default: none)"),
    ] = None
    slow_request_s: Annotated[
        NonNegativeFloat | None, Flag("log the timeline of requests that take longer, in seconds (default: never)")
    ] = None
    max_stored_responses: Annotated[
        NonNegativeInt,
        Flag(
            "maximum number of /v1/responses kept in memory per frontend, up to 64 KiB each; the least recently used "
            "are dropped first; 0: none"
        ),
    ] = 1000
    api_key: Annotated[
        tuple[str, ...],
        Flag("API keys, sent by clients as `Authorization: Bearer KEY`; @FILE reads one key per line", metavar="KEY"),
    ] = ()
    admin_key: Annotated[
        tuple[str, ...],
        Flag(
            "keys for /admin/… and profiles, used instead of an API key; without one these endpoints are disabled; "
            "@FILE reads one key per line",
            metavar="KEY",
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Flag(
            "accepted values of the Host header, such as llm.example or *.example; * allows any (default: localhost "
            "and *.localhost when listening on a loopback address, otherwise any; IP addresses are always accepted)",
            metavar="HOST",
        ),
    ] = ()
    cors_allow_origins: Annotated[
        tuple[str, ...],
        Flag(
            "origins whose web pages may use the server; * allows any; behind a proxy that terminates TLS or rewrites "
            "Host, include the server's own origin",
            metavar="ORIGIN",
        ),
    ] = ()
    root_path: Annotated[str, Flag("path prefix under which a reverse proxy serves this server, such as /llm")] = ""
    ssl_certfile: Annotated[str, Flag("TLS certificate file (PEM); enables https")] = ""
    ssl_keyfile: Annotated[str, Flag("private key file (PEM) of the TLS certificate")] = ""
    ssl_ca_certs: Annotated[
        str, Flag("file of CA certificates (PEM); clients must present a certificate signed by one of them")
    ] = ""

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 2**20)

    def without_keys(self) -> "HttpConfig":
        """Returns the same with asterisks for each key, to be shown."""
        hidden = {name: ("***",) * len(getattr(self, name)) for name in KEY_FIELDS}
        return msgspec.structs.replace(self, **hidden)
