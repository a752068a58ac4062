"""The C library, as include/usher.h and include/usher_mac.h declare it."""

from __future__ import annotations

import ctypes
import functools
import os

_NAMES = ("libusher.so.0", "libusher.so")


class Connection(ctypes.Structure):
    """struct usher_connection."""

    _fields_ = [
        ("uid", ctypes.c_uint32),
        ("user", ctypes.c_char * 33),
        ("service", ctypes.c_char * 33),
        ("host", ctypes.c_char * 64),
        ("key_fingerprint", ctypes.c_char * 52),
        ("principals", ctypes.c_char * 512),
        ("opened", ctypes.c_int64),
        ("expires", ctypes.c_int64),
    ]


@functools.cache
def library() -> ctypes.CDLL:
    """Loads the library, once.

    Raises ImportError with a remedy when it is missing or too old.
    """
    chosen = os.environ.get("USHER_LIBRARY")
    reasons = []
    for file in (chosen,) if chosen else _NAMES:
        try:
            loaded = ctypes.CDLL(file, use_errno=True)
            break
        except OSError as error:
            reasons.append(str(error))
    else:
        raise ImportError(
            f"Usher's library is not there ({'; '.join(reasons)}). Install the package "
            "libusher0, or run 'make install' and ldconfig. If the library is elsewhere, name its file "
            "in the environment variable USHER_LIBRARY."
        )
    integer, text, pointer = ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
    declarations = {
        "usher_connect_by_user": (integer, [text, text]),
        "usher_set_accept_mode": (integer, [integer, integer]),
        "usher_pre_accept": (integer, [integer]),
        "usher_set_net_user": (integer, [integer]),
        "usher_accept_by_user": (integer, [integer, ctypes.c_void_p, ctypes.c_void_p]),
        "usher_connection_info": (
            integer,
            [integer, ctypes.POINTER(Connection), ctypes.c_size_t],
        ),
        "usher_last_error": (text, []),
        "usher_mac_prepare": (integer, [pointer, text]),
        "usher_mac_prepare_type": (integer, [pointer, text]),
        "usher_mac_from_text": (integer, [pointer, text]),
        "usher_mac_to_text": (integer, [pointer, pointer]),
        "usher_mac_free": (integer, [pointer]),
        "usher_mac_get_file": (integer, [text, pointer]),
        "usher_mac_get_link": (integer, [text, pointer]),
        "usher_mac_get_fd": (integer, [integer, pointer]),
        "usher_mac_set_file": (integer, [text, pointer]),
        "usher_mac_set_link": (integer, [text, pointer]),
        "usher_mac_set_fd": (integer, [integer, pointer]),
        "usher_mac_get_proc": (integer, [pointer]),
        "usher_mac_get_pid": (integer, [integer, pointer]),
        "usher_mac_set_proc": (integer, [pointer]),
        "usher_mac_execve": (integer, [text, pointer, pointer, pointer]),
        "usher_mac_syscall": (integer, [text, integer, ctypes.c_uint64]),
        "usher_mac_is_present": (integer, [text]),
        # free(3) of the C library, for text that the calls have made.
        "free": (None, [pointer]),
    }
    for name, (result, arguments) in declarations.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise ImportError(
                f"{file} has no {name}: it is older than this package. "
                "Install both from the same version of Usher."
            ) from None
        function.restype = result
        function.argtypes = arguments
    return loaded
