//! One attempt of a socket to connect.

use std::os::fd::BorrowedFd;

use rustix::net::sockopt::socket_cookie;

use crate::KernelError;
use crate::shared::ticket;

/// One connect(2): its socket and its time, which distinguishes it from others of the same socket. Never
/// the same twice between two boots. See also [`Attempt::of_socket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The socket's cookie.
    pub cookie: u64,
    /// Boot time in nanoseconds.
    pub begun_ns: u64,
}

impl Attempt {
    /// A connection that is announced before it begins: any connect(2) of the socket.
    ///
    /// # Errors
    /// The kernel's error for a descriptor that is not a socket.
    pub fn of_socket(socket: BorrowedFd<'_>) -> Result<Self, KernelError> {
        let failed = KernelError::system("ask for the cookie of a socket");
        let cookie = socket_cookie(socket).map_err(failed)?;
        Ok(Self {
            cookie,
            begun_ns: 0,
        })
    }
}

impl From<Attempt> for ticket::Attempt {
    fn from(Attempt { cookie, begun_ns }: Attempt) -> Self {
        Self { cookie, begun_ns }
    }
}
