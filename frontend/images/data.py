"""Images within a body: base64, alone or in a `data:` URL."""

import binascii

from frontend.images.parts import BAD_URL, bad_image, too_large

CHUNK_CHARS = 1 << 18
"""Decoded at once; other threads run in between."""

SCHEME_CHARS = 16
HEAD_CHARS = 256
"""The longest beginning of a `data:` URL."""


def read_data(url: str, where: str, max_bytes: int) -> bytearray:
    """Returns the bytes of an image. Its declared type is not read. Raises `RequestError` (400)."""
    start = 0
    if url[:5].lower() == "data:":
        head, comma, _ = url[:HEAD_CHARS].partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise bad_image(where, "a data: URL must be data:image/TYPE;base64,DATA", BAD_URL)
        start = len(head) + 1
    elif ":" in url[:SCHEME_CHARS]:
        raise bad_image(where, "a URL must begin with data:, http: or https:", BAD_URL)
    num_bytes = (len(url) - start - url.count("\n") - url.count("\r")) * 3 // 4
    if num_bytes > max_bytes + 2:
        raise too_large(where, num_bytes, max_bytes)
    try:
        return _decode(url, start)
    except ValueError as error:  # binascii's errors are of this kind
        raise bad_image(where, f"the image is not valid base64: {error}", "invalid_base64") from None


def _decode(text: str, start: int) -> bytearray:
    """Decodes base64 with any line breaks, in the usual alphabet or that of URLs, with or without padding.

    Raises `ValueError`.
    """
    decoded, rest = bytearray(), ""
    for place in range(start, len(text), CHUNK_CHARS):
        piece = rest + "".join(text[place : place + CHUNK_CHARS].split()).replace("-", "+").replace("_", "/")
        end = len(piece) - len(piece) % 4
        decoded += binascii.a2b_base64(piece[:end], strict_mode=True)
        rest = piece[end:]
    return decoded + binascii.a2b_base64(rest + "=" * (-len(rest) % 4), strict_mode=True)
