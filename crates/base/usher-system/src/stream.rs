//! Queries on a TCP connection besides its bytes (tcp(7)).

pub use usher_system_ffi::{is_at_urgent_byte, unacknowledged};

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
