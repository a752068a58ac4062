"""Labels of mandatory access control, as usher_mac(3) has them.

A label is text: elements ``NAME/VALUE``, separated by commas; see maclabel(7). The functions for files
take a path or an open file.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

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


def get_process(pid: int | None = None, elements: str | None = None) -> str:
    """Returns the elements of a process's label, by name; without ``pid``, of this process.

    ``elements`` as for get(), by default those that mac.conf(5) has for processes. Raises UsherError: ESRCH
    when there is no such process, ENODATA when an element without ``?`` is missing.
    """
    kind = "usher_mac_prepare_type" if elements is None else "usher_mac_prepare"
    with _made(kind, "process" if elements is None else elements) as label:
        if pid is None:
            _call("usher_mac_get_proc", label)
        else:
            _call("usher_mac_get_pid", pid, label)
        return _text(label)


def set_process(label: str) -> None:
    """Sets the elements of a label on this process; its other elements stay.

    Raises UsherError: EPERM or EACCES when a module refuses, EPERM also when another process traces
    this one, EOPNOTSUPP when no module labels processes, EINVAL when ``label`` is none or no module has such an element.
    """
    with _made("usher_mac_from_text", label) as made:
        _call("usher_mac_set_proc", made)


def execve(
    path: str | bytes | os.PathLike[str],
    arguments: Sequence[str | bytes],
    environment: Mapping[str, str],
    label: str,
) -> NoReturn:
    """Executes a program, which begins with the elements of a label; does not return.

    Raises UsherError as set_process(), and with the errors of execve(2).
    """
    words = [os.fsencode(word) for word in arguments]
    settings = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
    target = os.fsencode(path)
    if any(b"\0" in word for word in [target, *words, *settings]):
        raise ValueError("paths, arguments and variables must not contain a zero byte")
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    envp = (ctypes.c_char_p * (len(settings) + 1))(*settings, None)
    with _made("usher_mac_from_text", label) as made:
        _call("usher_mac_execve", target, argv, envp, made)
    raise AssertionError("execve(2) has returned")


def call_module(module: str, call: int, argument: int = 0) -> None:
    """Calls a policy module: mac_syscall(3). The number and the argument mean what the module says.

    Raises UsherError: ENOSYS when no such module is in force, or it has no such call.
    """
    if "\0" in module:
        raise ValueError("a name must not contain a zero byte")
    _call("usher_mac_syscall", module.encode(), call, argument)


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
