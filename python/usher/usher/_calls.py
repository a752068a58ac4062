"""The calls as Python functions."""

from __future__ import annotations

import ctypes
import errno as errno_names
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

from usher._library import Connection, library

ACCEPT_BY_USER = 1
"""The accept mode for set_accept_mode(): each user's connections wait in a queue of their own."""


class UsherError(OSError):
    """A call failed.

    ``errno`` is that of the C call; ``strerror`` describes the cause and the remedy in words.
    """


class HasFileno(Protocol):
    """Anything with a descriptor, such as a socket."""

    def fileno(self) -> int:
        """Returns the descriptor."""


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """The client of a connection."""

    uid: int
    """The local account of the user."""
    user: str
    """The user."""
    service: str
    """The service."""
    host: str
    """The client's host, by its name in this host's policy."""
    key_fingerprint: str
    """The key that signed for the session, as ``ssh-keygen -l`` shows it."""
    principals: tuple[str, ...]
    """Principals of the key's certificate; empty for a plain key."""
    opened: datetime
    """When the session was opened."""
    expires: datetime
    """When it ends at the latest."""


def _descriptor(file: int | HasFileno) -> int:
    return file if isinstance(file, int) else file.fileno()


def _call(name: str, *arguments: Any) -> int:
    """Calls the library; returns its result or raises its error."""
    loaded = library()
    result: int = getattr(loaded, name)(*arguments)
    if result == -1:
        errno = ctypes.get_errno()
        text = loaded.usher_last_error() or os.strerror(errno).encode()
        raise UsherError(errno, f"{name}: {text.decode('utf-8', 'replace')}")
    return result


def _text(name: str) -> bytes:
    if "\0" in name:
        raise ValueError("a name must not contain a zero byte")
    return name.encode()


def connect_by_user(host: str, service: str) -> socket.socket:
    """Connects to ``service`` on ``host`` (names in the policy) as the user of this process.

    Raises UsherError, with the errno of connect_by_user(3): EACCES when a policy does not permit
    it, ENOKEY without a key on this host, ENETDOWN when this host's signer is not running, ...
    Blocks; other threads continue meanwhile.
    """
    connection = _call("usher_connect_by_user", _text(host), _text(service))
    return socket.socket(fileno=connection)


def set_accept_mode(listener: int | HasFileno, mode: int = ACCEPT_BY_USER) -> None:
    """Puts a listening TCP socket, bound to the port of a service of the policy, into a mode.

    The process must run as the service's account. Raises UsherError: EINVAL for another kind of
    socket, EACCES when the policy has no such service for this account, EOPNOTSUPP when the kernel
    runs no LSM programs, ENETDOWN when the keeper is not running.
    """
    _call("usher_set_accept_mode", _descriptor(listener), mode)


def pre_accept(listener: int | HasFileno) -> None:
    """Waits for a connection whose user has no process, and reserves the user for this process.

    Children that it forks from then on may use the reservation, too, within 30 seconds. The call
    continues after a signal whose handler does not raise (PEP 475).
    """
    while True:
        try:
            _call("usher_pre_accept", _descriptor(listener))
            return
        except UsherError as error:
            if error.errno != errno_names.EINTR:
                raise


def set_net_user(listener: int | HasFileno) -> None:
    """Makes this process the reserved user, for good.

    The process must have one thread. Raises UsherError; after ENOTRECOVERABLE the process must end.
    HOME and other variables of the environment stay those of the service's account.
    """
    _call("usher_set_net_user", _descriptor(listener))


def accept_by_user(listener: int | HasFileno) -> tuple[socket.socket, Any]:
    """Accepts the user's next connection; returns it with its peer address.

    Raises UsherError: EINVAL before set_net_user(), otherwise as accept4(2).
    """
    connection = socket.socket(
        fileno=_call("usher_accept_by_user", _descriptor(listener), None, None)
    )
    try:
        return connection, connection.getpeername()
    except OSError:
        # It was already reset; reading will report that.
        return connection, None


def connection_info(connection: int | HasFileno) -> ConnectionInfo:
    """Describes the client of an accepted connection.

    Raises UsherError: ENOENT when it is not an Usher connection, EACCES when it is another user's.
    """
    info = Connection()
    _call(
        "usher_connection_info",
        _descriptor(connection),
        ctypes.byref(info),
        ctypes.sizeof(info),
    )
    principals = info.principals.decode()
    return ConnectionInfo(
        uid=info.uid,
        user=info.user.decode(),
        service=info.service.decode(),
        host=info.host.decode(),
        key_fingerprint=info.key_fingerprint.decode(),
        principals=tuple(principals.split(",")) if principals else (),
        opened=datetime.fromtimestamp(info.opened, UTC),
        expires=datetime.fromtimestamp(info.expires, UTC),
    )


class ByUserListener:
    """A listening socket in the mode ACCEPT_BY_USER, with the calls as methods.

    Owns the socket, and is a context manager that closes it.
    """

    def __init__(self, listener: socket.socket) -> None:
        """As set_accept_mode(); if that fails the socket stays the caller's."""
        set_accept_mode(listener)
        self._listener = listener

    def fileno(self) -> int:
        """The descriptor; after set_net_user() the user's own queue, which can be polled."""
        return self._listener.fileno()

    def pre_accept(self) -> None:
        """See pre_accept()."""
        pre_accept(self)

    def set_net_user(self) -> None:
        """See set_net_user()."""
        set_net_user(self)

    def accept_by_user(self) -> tuple[socket.socket, Any]:
        """See accept_by_user()."""
        return accept_by_user(self)

    def close(self) -> None:
        """Closes the socket; in a process that has become a user, its duplicate of the queue."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
