"""Labels of mandatory access control, as usher_mac(3) has them.

A label is text: elements ``NAME/VALUE``, separated by commas; see maclabel(7). Every function takes
a path or an open file.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from usher._calls import HasFileno, _call, _descriptor
from usher._library import library

File = str | bytes | os.PathLike[str] | int | HasFileno
"""A path, a descriptor, or anything with a descriptor."""


@contextmanager
def _made(name: str, text: str) -> Iterator[ctypes.c_void_p]:
    """A label, freed at the end."""
    if "\0" in text:
        raise ValueError("a label must not contain a zero byte")
    label = ctypes.c_void_p()
    _call(name, ctypes.byref(label), text.encode())
    try:
        yield label
    finally:
        _call("usher_mac_free", label)


def _text(label: ctypes.c_void_p) -> str:
    text = ctypes.c_void_p()
    _call("usher_mac_to_text", label, ctypes.byref(text))
    try:
        return ctypes.string_at(text.value or 0).decode()
    finally:
        library().free(text)


def _act(act: str, file: File, label: ctypes.c_void_p, follow_symlinks: bool) -> None:
    if isinstance(file, str | bytes | os.PathLike):
        kind = "file" if follow_symlinks else "link"
        path = os.fsencode(file)
        if b"\0" in path:
            raise ValueError("a path must not contain a zero byte")
        _call(f"usher_mac_{act}_{kind}", path, label)
    else:
        _call(f"usher_mac_{act}_fd", _descriptor(file), label)


def get(file: File, elements: str | None = None, *, follow_symlinks: bool = True) -> str:
    """Returns the elements of a file's label, by name; the empty text if it has none of them.

    ``elements`` are names, separated by commas, with a ``?`` before one that may be missing; without
    them, those that mac.conf(5) has for files. Raises UsherError: ENODATA when an element without
    ``?`` is missing, EBADMSG when the attribute is not a label, EOPNOTSUPP when the file system keeps
    no labels.
    """
    kind = "usher_mac_prepare_type" if elements is None else "usher_mac_prepare"
    with _made(kind, "file" if elements is None else elements) as label:
        _act("get", file, label, follow_symlinks)
        return _text(label)


def set(file: File, label: str, *, follow_symlinks: bool = True) -> None:
    """Sets the elements of a label on a file; its other elements stay.

    Raises UsherError: EPERM without CAP_SYS_ADMIN, EINVAL when ``label`` is none, as get() otherwise.
    """
    with _made("usher_mac_from_text", label) as made:
        _act("set", file, made, follow_symlinks)


def canonical(label: str) -> str:
    """Returns the text of a label with its elements in the order of their names.

    Raises UsherError with EINVAL when it is not a label.
    """
    with _made("usher_mac_from_text", label) as made:
        return _text(made)


def is_present(module: str | None = None) -> bool:
    """Whether a policy module is loaded; without a name, whether any is."""
    name = None if module is None else module.encode()
    return _call("usher_mac_is_present", name) == 1
