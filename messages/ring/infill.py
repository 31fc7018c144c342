"""A gap in a text, as a part of a request to fill it in."""

import msgspec


class ExtraFile(msgspec.Struct, frozen=True, array_like=True):
    name: str
    text: str


class Infill(msgspec.Struct, frozen=True, array_like=True):
    """What surrounds a text that the model fills in (FIM). The prompt's text comes before it, `suffix` after it.

    `param` is the field that requested it. `files` come before everything, as context; the first ones are left out if
    there is too little room for all.
    """

    suffix: str
    param: str
    files: tuple[ExtraFile, ...] = ()

    @property
    def num_chars(self) -> int:
        return len(self.suffix) + sum(len(file.text) for file in self.files)
