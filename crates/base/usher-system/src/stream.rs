//! Queries on a TCP connection besides its bytes (tcp(7)).

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, ioctl};

// linux/sockios.h
const SIOCATMARK: Opcode = 0x8905;
const SIOCOUTQ: Opcode = 0x5411;

/// Whether the next byte to read is urgent: `recv(MSG_OOB)` returns it once it has come; read(2) and
/// splice(2) do not.
///
/// # Errors
/// When this is not a TCP connection.
pub fn is_at_urgent_byte(connection: impl AsFd) -> io::Result<bool> {
    // SAFETY: SIOCATMARK writes one int to the address that it is given, and reads nothing.
    let answer = unsafe { ioctl(connection, Getter::<SIOCATMARK, libc::c_int>::new()) };
    Ok(answer? != 0)
}

/// The number of bytes that the peer's kernel has not acknowledged yet.
///
/// # Errors
/// When this is not a TCP connection, or it listens.
pub fn unacknowledged(connection: impl AsFd) -> io::Result<usize> {
    // SAFETY: SIOCOUTQ writes one int to the address that it is given, and reads nothing.
    let answer = unsafe { ioctl(connection, Getter::<SIOCOUTQ, libc::c_int>::new()) };
    Ok(usize::try_from(answer?).unwrap_or(0))
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
