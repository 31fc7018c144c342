"""Parses the form of `POST /v1/files` as it arrives: the file goes to disk, the other fields stay in memory."""

import python_multipart
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartState, parse_options_header

from extras.batches.uploads import Upload
from messages.errors import ErrorInfo, RequestError, bad_request, errors_as, quoted

FORM_TYPE = "multipart/form-data"
FORM_BYTES = 65536
"""The limits on a form, apart from its file."""

MAX_PARTS = 9


class FormParser:
    """Call `feed` with each piece of the body, and then `end`. `feed` blocks while it writes to `upload`.

    All methods raise `RequestError`: 400 if the body is not a valid form, 413 if the file or the form is too large.
    """

    def __init__(self, content_type: str, upload: Upload, max_file_bytes: int):
        kind, options = parse_options_header(content_type)
        if kind.decode("latin-1").lower() != FORM_TYPE:
            raise RequestError(
                ErrorInfo(415, f"Content-Type {quoted(content_type)} is not supported, send {FORM_TYPE}")
            )
        self.fields: dict[str, str] = {}
        """Values by field name; empty for the file."""
        self.filename: str | None = None
        self.file_field = ""
        self._upload = upload
        self._max_file_bytes = max_file_bytes
        self._content = bytearray()
        """The file's bytes in the latest piece: the parser splits them wherever they resemble a boundary."""
        self._num_file_bytes = 0
        self._num_form_bytes = 0
        self._num_parts = 0
        try:
            self._parser = python_multipart.MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_to_name,
                    "on_header_value": self._add_to_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_part_end": self._end_part,
                },
            )
        except KeyError:
            raise bad_request("the form cannot be read: its Content-Type names no boundary") from None
        except FormParserError as error:
            raise bad_request(f"the form cannot be read: {error}") from None

    def feed(self, piece: bytes) -> None:
        with errors_as(bad_request, "the form cannot be read", of=FormParserError):
            self._parser.write(piece)
        if self._content:
            self._upload.write(bytes(self._content))
            self._content.clear()

    def end(self) -> None:
        """Checks that the form is complete."""
        if self._parser.state != MultipartState.END:
            raise bad_request("the form cannot be read: it ends before its last boundary")

    # Callbacks of the parser.

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise bad_request(f"the form cannot be read: it has more than {MAX_PARTS} parts")
        self._header_name, self._header_value, self._disposition = b"", b"", b""

    def _add_to_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name, self._header_value = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise bad_request("the form cannot be read: a part has no name in its Content-Disposition")
        self._name, self._is_file, self._text = _text(options[b"name"]), b"filename" in options, bytearray()
        if self._is_file:
            if self.filename is not None:
                raise bad_request("the form has two files: upload each by itself")
            self.filename, self.file_field = _text(options[b"filename"]), self._name

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._num_file_bytes += end - start
            if self._num_file_bytes > self._max_file_bytes:
                raise file_too_large(self._max_file_bytes)
            self._content += data[start:end]
        else:
            self._num_form_bytes += end - start
            if self._num_form_bytes > FORM_BYTES:
                raise RequestError(ErrorInfo(413, f"the fields of the form are larger than {FORM_BYTES} bytes"))
            self._text += data[start:end]

    def _end_part(self) -> None:
        self.fields[self._name] = _text(bytes(self._text))


def file_too_large(max_bytes: int) -> RequestError:
    message = f"the file is larger than {max_bytes} bytes"
    return RequestError(ErrorInfo(413, message, code="file_too_large"))


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
