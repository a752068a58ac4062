//! The exchange of the measuring clients.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The message that is sent and comes back.
pub const MESSAGE: [u8; 128] = [b'u'; 128];

/// The orders of three ways, one per round: each comes after each of the others equally often, so
/// that none always runs with the caches and left-over work of the same other.
pub const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

/// Sends the message over any stream, and waits for it to come back.
///
/// # Errors
/// Those of the stream; `InvalidData` when something else comes back.
pub fn exchange(mut stream: impl Read + Write) -> io::Result<()> {
    stream.write_all(&MESSAGE)?;
    let mut answer = [0; MESSAGE.len()];
    stream.read_exact(&mut answer)?;
    if answer == MESSAGE {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The same over a TCP connection.
///
/// # Errors
/// As [`exchange`].
pub fn exchange_tcp(connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    exchange(connection)
}

/// Waits until a newly started server listens.
///
/// # Errors
/// Those of connect(2), when the server does not listen within ten seconds.
pub fn wait_for(server: SocketAddr) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect(server) {
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result.map(drop),
        }
    }
}
