"""Network services that know the user at the other end.

Clients call ``connect_by_user``. A service puts its listener into the mode of ``ByUserListener``,
waits with ``pre_accept`` until a user without a process connects, becomes that user with
``set_net_user`` and takes the user's connections with ``accept_by_user``. See
connect_by_user(3) and usher_accept_by_user(3).
"""

from usher._calls import (
    ACCEPT_BY_USER,
    ByUserListener,
    ConnectionInfo,
    UsherError,
    accept_by_user,
    connect_by_user,
    connection_info,
    pre_accept,
    set_accept_mode,
    set_net_user,
)

__all__ = [
    "ACCEPT_BY_USER",
    "ByUserListener",
    "ConnectionInfo",
    "UsherError",
    "accept_by_user",
    "connect_by_user",
    "connection_info",
    "pre_accept",
    "set_accept_mode",
    "set_net_user",
]
