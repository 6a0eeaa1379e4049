"""Files that appear whole or not at all, of which a killed process leaves nothing for good.

What is written lies in a file without a name until it is complete, where the file system has such (O_TMPFILE of Linux):
if the process is killed before, the system frees it. Elsewhere, and for the moment between its name and its place, it
has a name of its own and is locked. The lock ends with the process, which tells a file that nobody writes any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_TEMPORARY = re.compile(r"\.gpuhash\.[0-9a-f]{12}\.tmp")
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")  # extended attributes: one's own, and access lists
#: What file systems without nameless files answer, and those on which such a file can get no name.
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.EXDEV, errno.EPERM)


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Writes the whole file or none.

    A file that is there is replaced at the end, and keeps its mode, its owner and its access list as far as the process
    may set them. A symbolic link stays, and the file that it leads to is replaced. Of a file with several names (hard
    links) the others keep what it was. What is no regular file, such as a pipe or ``/dev/stdout``, is written into.

    Parameters
    ----------
    write
        Writes the contents; called again where the first file could get no name.

    Raises
    ------
    OSError
        With the path that was given: FileNotFoundError for a missing folder, PermissionError for a file that may not be
        written, and so on.
    """
    given = os.fspath(Path(path))
    with _naming(given):
        old = _stat_of(Path(given))
        if old is not None and stat.S_ISDIR(old.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if old is not None and not os.access(given, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        if old is not None and not stat.S_ISREG(old.st_mode):
            with Path(given).open("wb") as file:  # not by its real path: what is behind /dev/stdout may have none
                write(file)
            return
        target = Path(os.path.realpath(given))
        if target.is_symlink():  # realpath gives up at links that go round
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        remove_leftovers(target.parent)
        if not _write_nameless(target, old, write):
            _write_named(target, old, write)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors of the system name the path that the user gave, and no temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def _stat_of(target: Path) -> os.stat_result | None:
    try:
        return target.stat()
    except FileNotFoundError:
        return None


def _new_name(target: Path) -> Path:
    # Without the target's name, which may be as long as the file system allows.
    return target.with_name(f".gpuhash.{secrets.token_hex(6)}.tmp")


def _write_nameless(target: Path, old: os.stat_result | None, write: Callable[[BinaryIO], object]) -> bool:
    """False where the file system has no nameless files, or gives them no names."""
    kind = getattr(os, "O_TMPFILE", None)
    if kind is None or not target.parent.is_dir():  # the other way says what is wrong
        return False
    try:
        descriptor = os.open(target.parent, kind | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NO_NAMELESS:
            return False
        raise
    with os.fdopen(descriptor, "wb") as file:
        _lock(descriptor)
        write(file)
        _complete(file, target, old)
        temporary = _new_name(target)
        try:
            _name(descriptor, temporary)
        except OSError as error:
            if error.errno in _NO_NAMELESS:
                return False
            raise
        _put_in_place(temporary, target)
    return True


def _name(descriptor: int, path: Path) -> None:
    """Gives a nameless file a name."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a folder's descriptor, since Python calls link() otherwise, which follows no links, whatever it is told.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _write_named(target: Path, old: os.stat_result | None, write: Callable[[BinaryIO], object]) -> None:
    while True:
        temporary = _new_name(target)
        with temporary.open("xb") as file:
            try:
                _lock(file.fileno())
                if os.fstat(file.fileno()).st_nlink == 0:
                    continue  # another process took it for a leftover before it was locked
                write(file)
                _complete(file, target, old)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _put_in_place(temporary, target)
            return


def _put_in_place(temporary: Path, target: Path) -> None:
    try:
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _lock(descriptor: int) -> None:
    """Locks a file that is being written, for as long as this process has it open."""
    with contextlib.suppress(OSError):  # a file system without locks: nobody removes leftovers there
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _complete(file: BinaryIO, target: Path, old: os.stat_result | None) -> None:
    """On the disk, with the owner and mode of the file that it is to replace. New files have those of the umask."""
    file.flush()
    descriptor = file.fileno()
    if old is not None:
        mode = stat.S_IMODE(old.st_mode)
        if not _give_to(descriptor, old.st_uid, old.st_gid) and not _give_to(descriptor, -1, old.st_gid):
            mode = mode & ~0o070 | (mode & 0o007) << 3  # to another group than before no more than to everybody
        os.fchmod(descriptor, mode)
        _copy_attributes(descriptor, target)
    os.fsync(descriptor)


def _give_to(descriptor: int, user: int, group: int) -> bool:
    """May this process give the file to this user and group?"""
    now = os.fstat(descriptor)
    if user in (-1, now.st_uid) and group == now.st_gid:
        return True
    try:
        os.fchown(descriptor, user, group)
    except OSError:
        return False
    return True


def _copy_attributes(descriptor: int, target: Path) -> None:
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):  # a file system without attributes, or without those of the old file
        for name in os.listxattr(target):
            if name.startswith(_KEPT_ATTRIBUTES):
                os.setxattr(descriptor, name, os.getxattr(target, name))


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files in a folder whose processes are gone: nobody holds their locks."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    except OSError:
        return  # a folder that is missing, or may not be read: writing says so
    for name in names:
        with contextlib.suppress(OSError):  # BlockingIOError: it is being written; and others' files are left alone
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / name).unlink()
            finally:
                os.close(descriptor)
