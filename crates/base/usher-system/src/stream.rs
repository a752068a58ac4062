//! Queries on a TCP connection besides its bytes (tcp(7)).

use std::io;
use std::os::fd::AsFd;

/// Whether the next byte to read is urgent: `recv(MSG_OOB)` returns it once it has come; read(2) and
/// splice(2) do not.
///
/// # Errors
/// When this is not a TCP connection.
pub fn is_at_urgent_byte(connection: impl AsFd) -> io::Result<bool> {
    usher_system_ffi::is_at_urgent_byte(connection.as_fd())
}

/// The number of bytes that the peer's kernel has not acknowledged yet.
///
/// # Errors
/// When this is not a TCP connection, or it listens.
pub fn unacknowledged(connection: impl AsFd) -> io::Result<usize> {
    usher_system_ffi::unacknowledged(connection.as_fd())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{SendFlags, send};

    use super::*;

    #[test]
    fn an_urgent_byte_is_found_behind_what_was_sent_before() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        send(&sender, b"ab", SendFlags::empty()).unwrap();
        send(&sender, b"!", SendFlags::OOB).unwrap();
        while unacknowledged(&sender).unwrap() > 0 {
            std::thread::yield_now();
        }
        let mut byte = [0];
        assert!(!is_at_urgent_byte(&receiver).unwrap());
        receiver.read_exact(&mut byte).unwrap();
        assert!(!is_at_urgent_byte(&receiver).unwrap());
        receiver.read_exact(&mut byte).unwrap();
        assert!(is_at_urgent_byte(&receiver).unwrap());
    }
}
