"""The free pages of the KV cache; whoever takes a page owns it until it gives it back."""

from collections.abc import Collection, Sequence


class PagePool:
    """A stack of free page ids: the page freed last is taken first, while it is still warm in the device's caches."""

    def __init__(self, num_pages: int, used: Collection[int] = ()):
        """All pages but those in `used` are free; the lowest, which may have memory already, are taken first."""
        self.num_pages = num_pages
        self._free = [page for page in range(num_pages - 1, -1, -1) if page not in used]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, num_pages: int) -> list[int]:
        """Removes `num_pages` from the pool and returns them; there must be as many."""
        assert 0 <= num_pages <= len(self._free), (num_pages, len(self._free))
        if not num_pages:
            return []
        taken = self._free[-num_pages:]
        del self._free[-num_pages:]
        return taken

    def free(self, pages: Sequence[int]) -> None:
        """Puts `pages` back; none of them may be free."""
        self._free.extend(pages)

    def free_pages(self) -> frozenset[int]:
        """Returns the free pages for a check; asserts that each is free once."""
        free = frozenset(self._free)
        assert len(free) == len(self._free), "a page was freed twice"
        assert all(0 <= page < self.num_pages for page in free), "a page that does not exist was freed"
        return free
