//! Real connections through the relay, by pipes and by memory.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream as Plain};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;

use super::*;
use crate::carrier::PIPES;

/// Client and server with the relay between them.
struct Relayed {
    client: Plain,
    server: Plain,
    outcome: JoinHandle<io::Result<()>>,
}

impl Relayed {
    fn new(pipes: usize) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let client = Plain::connect(address).unwrap();
        let (local, _) = listener.accept().unwrap();
        let remote = Plain::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        let outcome = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                for end in [&local, &remote] {
                    end.set_nonblocking(true)?;
                }
                let (local, remote) = (TcpStream::from_std(local)?, TcpStream::from_std(remote)?);
                relay(local, remote, &Carriers::new(pipes)).await
            })
        });
        Self {
            client,
            server,
            outcome,
        }
    }

    /// Two relays: the near end is the client of one and the server of the other.
    fn ways(pipes: usize) -> [(Plain, Plain, JoinHandle<io::Result<()>>); 2] {
        let (one, other) = (Self::new(pipes), Self::new(pipes));
        [
            (one.client, one.server, one.outcome),
            (other.server, other.client, other.outcome),
        ]
    }
}

/// Reads to the end. Returns the number of bytes, and the error with which the connection ended.
fn end_of(connection: &mut Plain) -> (usize, Option<io::ErrorKind>) {
    let mut read = 0;
    let mut buffer = vec![0; 65536];
    loop {
        match connection.read(&mut buffer) {
            Ok(0) => return (read, None),
            Ok(length) => read += length,
            Err(error) => return (read, Some(error.kind())),
        }
    }
}

// Threat model: A65
#[test]
fn an_abort_is_an_abort_and_an_end_is_an_end() {
    for pipes in [0, PIPES] {
        for (near, mut far, outcome) in Relayed::ways(pipes) {
            (&near).write_all(b"half of it").unwrap();
            abort(&near);
            assert_eq!(end_of(&mut far), (10, Some(io::ErrorKind::ConnectionReset)));
            assert!(outcome.join().unwrap().is_err());
        }
        for (near, mut far, outcome) in Relayed::ways(pipes) {
            (&near).write_all(b"all of it.").unwrap();
            drop(near);
            assert_eq!(end_of(&mut far), (10, None));
            drop(far);
            assert!(outcome.join().unwrap().is_ok());
        }
    }
}

#[test]
fn an_abort_reaches_a_peer_that_only_sends() {
    for (near, mut far, outcome) in Relayed::ways(PIPES) {
        // The side that aborts has ended its direction before.
        near.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(end_of(&mut far), (0, None));
        abort(&near);
        let broken = loop {
            if let Err(error) = far.write_all(b"more") {
                break error;
            }
        };
        assert!(
            matches!(
                broken.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ),
            "{broken}"
        );
        assert!(outcome.join().unwrap().is_err());
    }
}

#[test]
fn an_abort_reaches_a_peer_that_does_not_read() {
    for pipes in [0, PIPES] {
        for (near, far, outcome) in Relayed::ways(pipes) {
            // Writes until nothing on the way takes any more.
            near.set_nonblocking(true).unwrap();
            while connections::unacknowledged(&near).unwrap() < 1_000_000 {
                match (&near).write(&[7; 65536]) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
                    _ => thread::yield_now(),
                }
            }
            abort(&near);
            assert!(outcome.join().unwrap().is_err());
            // Waits for the error, while the received bytes are unread.
            poll(&mut [PollFd::new(&far, PollFlags::empty())], None).unwrap();
        }
    }
}

#[test]
fn a_reply_that_comes_before_an_abort_is_brought() {
    // A server that says why and goes, with input of its client unread.
    for pipes in [0, PIPES] {
        for (near, mut far, _) in Relayed::ways(pipes) {
            (&far).write_all(b"something").unwrap();
            let mut one = [0];
            (&near).read_exact(&mut one).unwrap();
            (&near).write_all(b"too much").unwrap();
            // With a byte unread, close() resets.
            drop(near);
            assert_eq!(end_of(&mut far), (8, Some(io::ErrorKind::ConnectionReset)));
        }
    }
}

#[test]
fn each_direction_ends_by_itself() {
    for (near, mut far, outcome) in Relayed::ways(PIPES) {
        (&near).write_all(b"question").unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(end_of(&mut far), (8, None));
        (&far).write_all(b"answer").unwrap();
        drop(far);
        assert_eq!(end_of(&mut near.try_clone().unwrap()), (6, None));
        assert!(outcome.join().unwrap().is_ok());
    }
}

#[test]
fn all_bytes_come_in_order_both_ways_at_once() {
    const LENGTH: usize = 20_000_000;
    fn byte(at: usize) -> u8 {
        (at.wrapping_mul(2_654_435_761) >> 16) as u8
    }
    for pipes in [0, PIPES] {
        let Relayed {
            client,
            server,
            outcome,
        } = Relayed::new(pipes);
        let ends = [client, server].map(|end| {
            let mut reader = end.try_clone().unwrap();
            let writer = thread::spawn(move || {
                let bytes: Vec<u8> = (0..LENGTH).map(byte).collect();
                (&end).write_all(&bytes).unwrap();
                end.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let reader = thread::spawn(move || {
                let mut bytes = Vec::new();
                reader.read_to_end(&mut bytes).unwrap();
                assert_eq!(bytes.len(), LENGTH);
                assert!(
                    bytes
                        .iter()
                        .enumerate()
                        .all(|(at, found)| *found == byte(at))
                );
            });
            [writer, reader]
        });
        ends.into_iter()
            .flatten()
            .for_each(|end| end.join().unwrap());
        assert!(outcome.join().unwrap().is_ok());
    }
}

#[test]
fn an_urgent_byte_stays_urgent_and_in_its_place() {
    for (near, mut far, outcome) in Relayed::ways(PIPES) {
        for round in 0..3_u8 {
            (&near).write_all(b"before").unwrap();
            rustix::net::send(&near, &[round], SendFlags::OOB).unwrap();
            let mut waiting = [PollFd::new(&far, PollFlags::PRI)];
            poll(&mut waiting, None).unwrap();
            let mut before = [0; 6];
            far.read_exact(&mut before).unwrap();
            assert_eq!(&before, b"before");
            assert!(connections::is_at_urgent_byte(&far).unwrap());
            let mut byte = [0xff];
            rustix::net::recv(&far, &mut byte[..], RecvFlags::OOB).unwrap();
            assert_eq!(byte, [round]);
            (&near).write_all(b"after").unwrap();
            let mut after = [0; 5];
            far.read_exact(&mut after).unwrap();
            assert_eq!(&after, b"after");
        }
        drop(near);
        assert_eq!(end_of(&mut far), (0, None));
        drop(far);
        assert!(outcome.join().unwrap().is_ok());
    }
}

#[test]
fn an_urgent_byte_is_never_lost() {
    for pipes in [0, PIPES] {
        for (near, mut far, outcome) in Relayed::ways(pipes) {
            sockopt::set_socket_oobinline(&far, true).unwrap();
            for _ in 0..100 {
                (&near).write_all(b"before").unwrap();
                rustix::net::send(&near, b"!", SendFlags::OOB).unwrap();
            }
            drop(near);
            assert_eq!(end_of(&mut far), (700, None), "{pipes} pipes");
            drop(far);
            assert!(outcome.join().unwrap().is_ok());
        }
    }
}

// Threat model: A64
#[test]
fn one_that_does_not_read_keeps_no_pipe_from_the_others() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let pair = || {
        let near = Plain::connect(address).unwrap();
        let (far, _) = listener.accept().unwrap();
        (near, far)
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let carriers = std::sync::Arc::new(Carriers::new(1));
    let through = || {
        let ((client, local), (remote, server)) = (pair(), pair());
        let carriers = std::sync::Arc::clone(&carriers);
        runtime.spawn(async move {
            for end in [&local, &remote] {
                end.set_nonblocking(true)?;
            }
            let (local, remote) = (TcpStream::from_std(local)?, TcpStream::from_std(remote)?);
            relay(local, remote, &carriers).await
        });
        (client, server)
    };
    let (stalled, _unread) = through();
    stalled.set_nonblocking(true).unwrap();
    while connections::unacknowledged(&stalled).unwrap() < 1_000_000 {
        let _ = (&stalled).write(&[7; 65536]);
    }
    let (client, mut server) = through();
    let writer = thread::spawn(move || (&client).write_all(&[7; 5_000_000]).unwrap());
    assert_eq!(end_of(&mut server), (5_000_000, None));
    writer.join().unwrap();
    runtime.shutdown_background();
}
