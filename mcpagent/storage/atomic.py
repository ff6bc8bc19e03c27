"""Files and folders that appear under their name only when they are complete."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mcpagent.core.redact import SECRETS
from mcpagent.errors import MCPAgentError, RunError, UserError

TEMPORARY_PREFIX = ".tmp-"
_BLOCK_BYTES = 2**22
_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process may write (ulimit -f)",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk reports an error",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
}
_PLACE = {
    errno.ENOTDIR: "it is a file, and a folder is needed",
    errno.EEXIST: "it is a file, and a folder is needed",
    errno.EISDIR: "it is a folder, and a file is needed",
}
_NATIVE = re.compile(r"\(os error (\d+)\)")  # how libraries in Rust (safetensors, tokenizers) say it


@contextmanager
def atomic_file(final: Path) -> Iterator[Path]:
    """Yields the path to write to; a normal exit moves it to `final`, an exception leaves `final` as it was.

    The folder of `final` is made if it is missing.
    """
    with reported(final):
        final.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(final)
    try:
        with reported(final):
            yield temporary
            _sync(temporary)
            temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_dir(final: Path) -> Iterator[Path]:
    """Like `atomic_file` for a folder; an older folder of that name is replaced."""
    temporary = _temporary(final)
    with reported(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    try:
        with reported(final):
            yield temporary
            for path in temporary.rglob("*"):
                if path.is_file():
                    _sync(path)
            if final.exists():
                # A folder cannot be replaced in one step: the old one gives up its name first.
                replaced = final.with_name(f"{temporary.name}-replaced")
                final.replace(replaced)
                temporary.replace(final)
                shutil.rmtree(replaced)
            else:
                temporary.replace(final)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turns what the disk refuses while `path` is written into a RunError, and a path that cannot be into a
    UserError."""
    try:
        yield
    except MCPAgentError:
        raise
    except Exception as error:
        if (failure := disk_error(error, where=path)) is None:
            raise
        raise failure from None


def disk_error(error: Exception, *, where: Path | None) -> RunError | UserError | None:
    """Return the error for what the disk refused, or for a path that cannot be; None if `error` says
    something else."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := _NATIVE.search(str(error))) is not None:
        number = int(match[1])
    place = where if where is not None else error.filename if isinstance(error, OSError) else None
    if number in _PLACE:
        return UserError(
            f"cannot be written: {_PLACE[number]} ({os.strerror(number)})",
            where=None if place is None else str(place),
            remedy="name another place",
        )
    if number not in _DISK:
        return None
    return RunError(
        f"cannot be written: {_DISK[number]} ({os.strerror(number)})",
        where=None if place is None else str(place),
        remedy="make room or name another place, then type the command again, a training run with --resume",
    )


def write_text(final: Path, text: str, *, is_settings: bool = False) -> None:
    """Write a whole UTF-8 file atomically, without secrets. `is_settings` if it is read again as what it
    says, and so left as it is: a path that happens to hold the value of a secret must stay that path."""
    with atomic_file(final) as path:
        path.write_text(text if is_settings else SECRETS.text(text), encoding="utf-8")


def without_secrets(log: Path) -> None:
    """Rewrite a file that another process wrote, if a secret stands in it."""
    if not log.is_file():
        return
    with log.open("rb") as source:
        is_clean = all(SECRETS.data(block) is block for block in _blocks(source))
        if is_clean:
            return
        source.seek(0)
        with atomic_file(log) as path, path.open("wb") as target:
            target.writelines(map(SECRETS.data, _blocks(source)))


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    """Yield the file in pieces of whole lines, unless a line is too long."""
    while block := source.read(_BLOCK_BYTES):
        yield block + source.readline(_BLOCK_BYTES)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written directly in `folder`."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _temporary(final: Path) -> Path:
    return final.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{final.name}")


def _sync(path: Path) -> None:
    # Renaming may reach the disk before the contents do; then a power cut leaves an empty file.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
