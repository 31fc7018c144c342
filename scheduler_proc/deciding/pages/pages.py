"""The free pages of the KV cache."""

from collections.abc import Collection, Sequence


class PagePool:
    """A stack of free page ids: the page freed last is allocated first, while the device's caches still hold it."""

    def __init__(self, num_pages: int, used: Collection[int] = ()):
        """All pages except `used` are free. The lowest, which may be populated already, are allocated first."""
        self.num_pages = num_pages
        self._free = [page for page in range(num_pages - 1, -1, -1) if page not in used]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, num_pages: int) -> list[int]:
        """Removes `num_pages` pages from the pool, which must have as many, and returns them."""
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
        """Returns the free pages; asserts that each is free once."""
        free = frozenset(self._free)
        assert len(free) == len(self._free), "a page was freed twice"
        assert all(0 <= page < self.num_pages for page in free), "a page that does not exist was freed"
        return free
