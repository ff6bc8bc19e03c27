"""Files and folders that appear under their name only when they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mcpagent.core.redact import SECRETS

TEMPORARY_PREFIX = ".tmp-"
_BLOCK_BYTES = 2**22


@contextmanager
def atomic_file(final: Path) -> Iterator[Path]:
    """Yields the path to write to; a normal exit moves it to `final`, an exception leaves `final` as it was.

    The folder of `final` is made where it is missing.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(final)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_dir(final: Path) -> Iterator[Path]:
    """Like `atomic_file` for a folder; an older folder of that name is replaced."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(final)
    temporary.mkdir()
    try:
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


def write_text(final: Path, text: str) -> None:
    """Write a whole UTF-8 file atomically, without secrets."""
    with atomic_file(final) as path:
        path.write_text(SECRETS.text(text), encoding="utf-8")


def without_secrets(log: Path) -> None:
    """Rewrite a file that another process wrote, where a secret stands in it."""
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
    """The file in pieces of whole lines, where lines are not too long."""
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
