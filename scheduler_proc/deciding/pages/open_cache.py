"""Makes the allocator of a server's KV cache with what observes its pages."""

from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_journal import PageJournal, PageMemory
from scheduler_proc.deciding.pages.page_observer import PageObserver, PageStore
from scheduler_proc.deciding.pages.page_tiers import PageTiers
from scheduler_proc.deciding.pages.radix import RadixTree
from scheduler_proc.deciding.pages.state_plans import StatePlanner
from scheduler_proc.deciding.pages.state_slots import StateSlots
from scheduler_proc.deciding.pages.window_pages import WindowPages


def open_cache(
    num_pages: int,
    page_size: int,
    is_sharing: bool,
    memory: PageMemory | None,
    store: PageStore | None,
    windows: tuple[int, int] | None = None,
    states: tuple[int, int] | None = None,
) -> BlockAllocator:
    """Returns an allocator in which the intact pages that a predecessor left in `memory` are cached.

    Evicted pages go to `store`. `windows`: the window of windowed layers, and the number of their pages. `states`: the
    number of slots for recurrent states, and of the pages between checkpoints of a long prompt.
    """
    num_attached = windows[1] if windows else 0, states[0] if states else 0
    observers: list[PageObserver] = []
    tree, digests = RadixTree(page_size), dict[int, bytes]()
    journal = None if memory is None else PageJournal(memory, num_pages, page_size, *num_attached)
    if journal is not None:
        tree = RadixTree(page_size, journal.stamps)
        digests = {page: journal.digest(page) for page in journal.recover(tree)}
        observers.append(journal)
    window_pages = slots = None
    if windows is not None:
        window_pages = WindowPages(*windows, page_size, {} if journal is None else journal.find_windows())
        if journal is not None:
            journal.windows = window_pages
    if states is not None:
        slots = StateSlots(*states, {} if journal is None else journal.find_states())
    num_evicted_at_once = 0
    if store is not None:
        tiers = PageTiers(store, num_pages, page_size, slots)
        for page, digest in digests.items():
            tiers.set_digest(page, digest)
        observers.append(tiers)
        num_evicted_at_once = tiers.num_evicted_at_once
    observers += [part for part in (window_pages, slots) if part is not None]
    cache = BlockAllocator(num_pages, page_size, is_sharing, tree, observers, num_evicted_at_once)
    if slots is not None:
        StatePlanner(cache, slots)
    return cache
