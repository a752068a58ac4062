//! Packet sockets for the daemons, on tokio.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::net::SocketFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::coop::consume_budget;

use crate::packet::{self, Packet, PacketSocket, Peer};

/// Waits for a descriptor's readiness on the running tokio reactor.
///
/// # Errors
/// When the reactor cannot take the descriptor.
#[expect(
    deprecated,
    reason = "the deprecation is about types whose descriptor may change or close under the \
              reactor; what is Kept keeps its descriptor as long as it lives"
)]
pub fn register<D: Kept>(descriptor: D, interest: Interest) -> io::Result<AsyncFd<D>> {
    AsyncFd::with_interest(descriptor, interest)
}

/// A type that owns one descriptor, the same for its whole life.
pub trait Kept: AsRawFd {}

impl Kept for OwnedFd {}
impl Kept for Arc<OwnedFd> {}

/// Pause before accepting again when the system lacks descriptors or memory.
pub const SHORTAGE: std::time::Duration = std::time::Duration::from_millis(50);

/// Whether the process or the system is out of descriptors or memory, which is temporary.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error
        .raw_os_error()
        .is_some_and(|code| shortages.iter().any(|errno| errno.raw_os_error() == code))
}

/// Waits for a connection, also while descriptors or memory are short.
///
/// # Errors
/// Other errors of accept(2), and those of getsockopt(2) for the uid of the peer, which comes with the
/// connection.
pub(crate) async fn accept_stream(listener: &UnixListener) -> io::Result<(UnixStream, u32)> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let uid = stream.peer_cred()?.uid();
                return Ok((stream, uid));
            }
            Err(error) if is_shortage(&error) => tokio::time::sleep(SHORTAGE).await,
            Err(error) => return Err(error),
        }
    }
}

/// A listening packet socket.
#[derive(Debug)]
pub struct PacketListener(AsyncFd<OwnedFd>);

/// A connected packet socket. All methods take `&self`: one task may send while another receives.
///
/// A receiving task lets other tasks run from time to time, even when packets keep coming: tokio's readiness
/// of descriptors has no such limit, and a peer that never stops would keep the whole daemon busy. The socket
/// is registered for receiving only: otherwise the kernel would wake this process whenever the peer takes a
/// packet.
#[derive(Debug)]
pub struct AsyncPacketSocket(AsyncFd<OwnedFd>);

impl PacketListener {
    /// Registers a listener made by [`packet::listen`] with the running tokio reactor.
    ///
    /// # Errors
    /// When the reactor cannot take the descriptor.
    pub fn new(listener: OwnedFd) -> io::Result<Self> {
        Ok(Self(register(listener, Interest::READABLE)?))
    }

    /// Waits for a connection, and returns it with its peer.
    ///
    /// # Errors
    /// As accept(2) and getsockopt(2). A peer that has already gone is skipped, and a shortage of
    /// descriptors or memory is waited out: neither may end a daemon.
    pub async fn accept(&self) -> io::Result<(AsyncPacketSocket, Peer)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            consume_budget().await;
            let mut ready = self.0.readable().await?;
            match ready.try_io(|socket| Ok(rustix::net::accept_with(socket.get_ref(), flags)?)) {
                Ok(Ok(connection)) => {
                    let peer = packet::peer(connection.as_fd())?;
                    return Ok((AsyncPacketSocket::register(connection)?, peer));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Ok(Err(error)) if is_shortage(&error) => tokio::time::sleep(SHORTAGE).await,
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    /// Waits for a connection from a process of the account of `role`, whose uid is `permitted`. Others
    /// are refused, with a warning.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub async fn accept_of(&self, permitted: u32, role: &str) -> io::Result<AsyncPacketSocket> {
        loop {
            let (connection, Peer { uid, pid }) = self.accept().await?;
            if uid == permitted {
                return Ok(connection);
            }
            tracing::warn!(
                uid,
                pid,
                "refused a connection: its process does not run as the {role}"
            );
        }
    }
}

impl AsyncPacketSocket {
    /// Connects to the listener at `path`, without waiting: local connects do not wait.
    ///
    /// # Errors
    /// As [`PacketSocket::connect`].
    pub fn connect(path: &Path) -> io::Result<Self> {
        Self::from_blocking(PacketSocket::connect(path)?)
    }

    fn register(connection: OwnedFd) -> io::Result<Self> {
        Ok(Self(register(connection, Interest::READABLE)?))
    }

    /// Makes a blocking packet socket asynchronous.
    ///
    /// # Errors
    /// When the reactor cannot take the descriptor.
    pub fn from_blocking(socket: PacketSocket) -> io::Result<Self> {
        let descriptor = OwnedFd::from(socket);
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Self::register(descriptor)
    }

    /// Sends one packet, waiting while the peer's queue is full.
    ///
    /// # Errors
    /// As sendmsg(2); `EPIPE` when the peer has gone.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_with(bytes, &[]).await
    }

    /// Sends one packet with descriptors, waiting while the peer's queue is full.
    ///
    /// # Errors
    /// As [`PacketSocket::send`].
    pub async fn send_with(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        match packet::send(self.as_fd(), bytes, descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent,
        }
        let full = loop {
            match self.as_fd().try_clone_to_owned() {
                Err(error) if is_shortage(&error) => tokio::time::sleep(SHORTAGE).await,
                descriptor => break register(descriptor?, Interest::WRITABLE)?,
            }
        };
        loop {
            let mut ready = full.writable().await?;
            match ready.try_io(|socket| packet::send(socket.as_fd(), bytes, descriptors)) {
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Sends one packet, and does not wait.
    ///
    /// # Errors
    /// As [`PacketSocket::send`]; `WouldBlock` while the peer's queue is full.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<()> {
        packet::send(self.as_fd(), bytes, &[])
    }

    /// Receives one packet. Empty bytes mean that the peer has closed.
    ///
    /// # Errors
    /// As [`PacketSocket::receive`].
    pub async fn receive(&self, limit: usize) -> io::Result<Packet> {
        self.when_readable(|socket| packet::receive(socket, limit, packet::MAX_DESCRIPTORS))
            .await
    }

    /// Receives one packet with all its descriptors, and whether it is within its limits. For untrusted
    /// peers: closing one of their descriptors may take as long as they like (SO_LINGER, their own file
    /// system), so the caller closes descriptors where it may wait.
    ///
    /// # Errors
    /// As recvmsg(2).
    pub async fn receive_any(&self, limit: usize) -> io::Result<(Packet, bool)> {
        self.when_readable(|socket| packet::receive_any(socket, limit, packet::MAX_DESCRIPTORS))
            .await
    }

    async fn when_readable<T>(
        &self,
        receive: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        consume_budget().await;
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|socket| receive(socket.as_fd())) {
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }
}

impl AsFd for AsyncPacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Senders;

    #[test]
    fn a_shortage_passes_and_other_errors_do_not() {
        use rustix::io::Errno;
        assert!(is_shortage(&Errno::MFILE.into()));
        assert!(is_shortage(&Errno::NOMEM.into()));
        assert!(!is_shortage(&Errno::INVAL.into()));
        assert!(!is_shortage(&io::ErrorKind::UnexpectedEof.into()));
    }

    #[tokio::test]
    async fn a_sender_waits_until_there_is_room_and_no_packet_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = PacketListener::new(
            packet::listen(&path, Senders::Told, packet::Connectable::ByRoot).unwrap(),
        )
        .unwrap();
        let sender = AsyncPacketSocket::connect(&path).unwrap();
        let (receiver, _) = listener.accept().await.unwrap();
        const PACKETS: u32 = 2000;
        let sending = async {
            for number in 0..PACKETS {
                let mut packet = [0; 4096];
                packet[..4].copy_from_slice(&number.to_be_bytes());
                sender.send(&packet).await.unwrap();
            }
        };
        let receiving = async {
            // The socket is full by now: packets were sent without a pause until there was no room.
            let full = packet::send(sender.as_fd(), &[0], &[]).unwrap_err();
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            for number in 0..PACKETS {
                let packet = receiver.receive(4096).await.unwrap();
                assert_eq!(packet.bytes[..4], number.to_be_bytes());
            }
        };
        tokio::join!(sending, receiving);
    }

    #[tokio::test]
    async fn who_always_has_something_to_say_lets_other_tasks_run() {
        const PACKETS: u32 = 250;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = PacketListener::new(
            packet::listen(&path, Senders::Told, packet::Connectable::ByRoot).unwrap(),
        )
        .unwrap();
        let sender = AsyncPacketSocket::connect(&path).unwrap();
        let (receiver, _) = listener.accept().await.unwrap();
        for _ in 0..PACKETS {
            packet::send(sender.as_fd(), &[1], &[]).unwrap();
        }
        let received = std::cell::Cell::new(0);
        let receiving = async {
            for _ in 0..PACKETS {
                receiver.receive(1).await.unwrap();
                received.set(received.get() + 1);
            }
        };
        let other = async { received.get() };
        let ((), at_other) = tokio::join!(receiving, other);
        assert!(
            at_other < PACKETS,
            "{at_other} packets before the other task ran"
        );
    }
}
