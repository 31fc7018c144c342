"""The part of the configuration that is about HTTP (`messages/config/server.py`)."""

from typing import Annotated

import msgspec
from msgspec import Meta

KEY_FIELDS = ("api_key", "admin_key")
"""Of `HttpConfig`: what must not be shown."""


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP"""

    host: Annotated[str, Meta(description="address to listen on; 0.0.0.0 for all")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0: any free one")] = 8000
    is_private: bool = False
    """It listens on a Unix socket in the run directory, which only this user can reach. Not a flag."""
    sse_keepalive_s: Annotated[
        float, Meta(gt=0, description="seconds of silence after which a stream gets a comment line")
    ] = 15.0
    max_body_mb: Annotated[float, Meta(gt=0, description="largest request body in MiB")] = 16.0
    max_bodies_mb: float = 0.0
    """MiB for the bodies of all requests that are open or still arriving; 0: 16 of the largest. Not a flag."""
    strict_fields: Annotated[
        bool, Meta(description="refuse bodies with fields that are not known here, also those of other servers' APIs")
    ] = False
    allow_additional_properties: Annotated[
        bool,
        Meta(
            description="in structured output, objects may have properties that their JSON schema does not name, "
            "unless it forbids them (default: only if it allows them)"
        ),
    ] = False
    request_timeout_s: (
        Annotated[
            float,
            Meta(
                gt=0,
                description="seconds after which a request without timeout_s ends with what it has (default: none)",
            ),
        ]
        | None
    ) = None
    slow_request_s: (
        Annotated[
            float,
            Meta(ge=0, description="seconds after which the timeline of a request is logged (default: never)"),
        ]
        | None
    ) = None
    max_stored_responses: Annotated[
        int,
        Meta(
            ge=0,
            description="responses of /v1/responses that each frontend keeps in memory, at 64 KiB each; the least "
            "recently used are dropped first; 0: none",
        ),
    ] = 1000
    api_key: Annotated[
        tuple[str, ...],
        Meta(
            description="API keys: clients must send one as `Authorization: Bearer KEY`; @FILE reads them from a file, "
            "one per line",
            extra={"metavar": "KEY"},
        ),
    ] = ()
    admin_key: Annotated[
        tuple[str, ...],
        Meta(
            description="admin keys: requests to /admin/… and for profiles must send one instead of an API "
            "key; without any key these are refused; @FILE reads them from a file",
            extra={"metavar": "KEY"},
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="host names under which clients reach the server, as llm.example or *.example; * for any "
            "(default: on a loopback address localhost and *.localhost, elsewhere any; IP addresses always)",
            extra={"metavar": "HOST"},
        ),
    ] = ()
    cors_allow_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="origins whose web pages may use the server (its own too, behind a proxy that ends TLS or "
            "changes Host); * for all",
            extra={"metavar": "ORIGIN"},
        ),
    ] = ()
    root_path: Annotated[str, Meta(description="path under which a proxy serves this server, as /llm")] = ""
    ssl_certfile: Annotated[str, Meta(description="certificate file (PEM), for https")] = ""
    ssl_keyfile: Annotated[str, Meta(description="private key file (PEM) of the certificate")] = ""
    ssl_ca_certs: Annotated[
        str, Meta(description="file of authorities (PEM) that clients' certificates must come from")
    ] = ""

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 2**20)

    def without_keys(self) -> "HttpConfig":
        """Returns the same with asterisks for each key, to be shown."""
        hidden = {name: ("***",) * len(getattr(self, name)) for name in KEY_FIELDS}
        return msgspec.structs.replace(self, **hidden)
