"""Images within a body: base64, alone or in a `data:` URL."""

import binascii

from frontend.images.parts import BAD_URL, bad_image, too_large

CHUNK_CHARS = 1 << 18
"""Decoded at once; other threads run in between. A multiple of 4."""

SCHEME_CHARS = 16
HEAD_CHARS = 256
"""The longest beginning of a `data:` URL."""


def read_data(url: str, where: str, max_bytes: int) -> bytes:
    """Returns the bytes of an image. Its declared type is not read. Raises `RequestError` (400)."""
    start = 0
    if is_data_url(url):
        head, comma, _ = url[:HEAD_CHARS].partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise bad_image(where, "a data: URL must be data:image/TYPE;base64,DATA", BAD_URL)
        start = len(head) + 1
    elif ":" in url[:SCHEME_CHARS]:
        raise bad_image(where, "a URL must begin with data:, http: or https:", BAD_URL)
    text = url[start:] if start else url
    if len(text) > 4 * (max_bytes // 3 + 1) + 2 and (size := _size(text)) > max_bytes:
        raise too_large(where, size, max_bytes)
    try:
        return _decode(text)
    except (binascii.Error, ValueError):
        pass
    repaired = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return _decode(repaired + "=" * (-len(repaired) % 4))
    except (binascii.Error, ValueError) as error:
        raise bad_image(where, f"the image is not valid base64: {error}", "invalid_base64") from None


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def _size(text: str) -> int:
    """Returns the number of bytes that base64 with any line breaks has, about."""
    return (len(text) - text.count("\n") - text.count("\r")) * 3 // 4


def _decode(text: str) -> bytes:
    """Raises `binascii.Error` or, for other characters than ASCII, `ValueError`."""
    decoded = bytearray()
    for start in range(0, len(text), CHUNK_CHARS):
        decoded += binascii.a2b_base64(text[start : start + CHUNK_CHARS], strict_mode=True)
    return bytes(decoded)
