"""Errors of images."""

from messages.errors import SluiceError


class ImageError(SluiceError):
    """An image cannot be used. The message follows words such as "image at messages[0].content[1]: ".

    `status` is 400 if the image is to blame, 503 if it may succeed later.
    """

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status
