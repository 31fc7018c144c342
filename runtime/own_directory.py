"""Directories in places where other users may write too, such as /tmp: checked, opened and emptied by descriptor.

Another user may replace a path by a link at any moment; a descriptor always refers to the same directory.
"""

import errno
import os
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def own_directory(path: Path) -> Generator[int]:
    """Opens the directory `path` and yields its descriptor.

    Raises `OSError` for a link, a directory of another user, or one that is not empty and writable by others.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise OSError(errno.ENOTDIR, "it is not a directory", str(path)) from None
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.getuid():
            raise OSError(errno.EPERM, "it belongs to another user", str(path))
        if facts.st_mode & stat.S_IWOTH and names_in(descriptor):
            raise OSError(errno.EPERM, "other users may write in it (chmod 700 it, or choose another)", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def names_in(descriptor: int) -> list[str]:
    """Returns the names of the entries of an open directory."""
    return os.listdir(descriptor)


def is_own_directory(path: Path) -> bool:
    """True if `path` is a directory owned by this user, not a link."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()


def empty_directory(descriptor: int, kept: str) -> None:
    """Removes everything in the directory except the entry `kept`. Follows no links; entries may vanish meanwhile."""
    for name in names_in(descriptor):
        if name == kept:
            continue
        try:
            os.unlink(name, dir_fd=descriptor)
        except FileNotFoundError:
            pass
        except OSError:  # EISDIR on Linux, EPERM elsewhere
            shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
