"""Images of a prompt: what processes other than the frontend need to know before the pixels are decoded."""

import hashlib

import msgspec

IMAGE_DIGEST_BYTES = 16


class ImageInput(msgspec.Struct, frozen=True, array_like=True):
    """One image. Its file in the run directory is named after `digest`, a digest of the file's bytes.

    `width` and `height` are its pixels after its EXIF orientation has been applied. The other numbers limit how it is
    resized, 0 for the model's own limit: its area in pixels, and the number of tokens it becomes. `param` is its place
    in the request's body, such as `messages[0].content[1]`, for errors.
    """

    digest: bytes
    width: int
    height: int
    min_pixels: int = 0
    max_pixels: int = 0
    max_tokens: int = 0
    param: str = "messages"

    def encoding_digest(self) -> bytes:
        """Returns the digest of its encoding: of its bytes and its limits (`PromptSpan.digest`)."""
        limits = f"{self.min_pixels} {self.max_pixels} {self.max_tokens}".encode("ascii")
        return hashlib.blake2b(self.digest + limits, digest_size=IMAGE_DIGEST_BYTES, person=b"image").digest()
