//! Packet sockets between processes of one host (`SOCK_SEQPACKET`, `unix(7)`). They keep message borders,
//! carry descriptors, and the kernel names the peer.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::files::remove_if_there;

/// Limit of descriptors in a received packet. A packet with more is refused.
pub const MAX_DESCRIPTORS: usize = 2;
/// Limit of descriptors in a packet that we send.
pub const MAX_SENT_DESCRIPTORS: usize = 3;
/// The kernel's limit of descriptors in a packet (include/net/scm.h).
const SCM_MAX_FD: usize = 253;

/// One end of a packet connection.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// The process at the other end, by `SO_PEERCRED`: its credentials at the time of connect(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Effective user of the peer.
    pub uid: u32,
    /// Process of the peer; may have ended since.
    pub pid: i32,
}

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// The bytes; empty when the peer has closed.
    pub bytes: Vec<u8>,
    /// The descriptors that the packet carried, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// The process that sent the packet (`SCM_CREDENTIALS`), if the socket asks for it ([`Senders::Told`]).
    pub sender: Option<i32>,
}

impl PacketSocket {
    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// As connect(2): `ENOENT` or `ECONNREFUSED` when the daemon does not run.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = Self::unconnected()?;
        socket.connect_to(path)?;
        Ok(socket)
    }

    /// A socket that is connected later, by [`Self::connect_to`].
    ///
    /// # Errors
    /// As socket(2).
    pub fn unconnected() -> io::Result<Self> {
        Ok(Self(new_socket(SocketFlags::CLOEXEC)?))
    }

    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_to(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::net::connect(&self.0, &SocketAddrUnix::new(path)?)?)
    }

    /// Takes over a connected packet socket.
    #[must_use]
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Sends one packet with descriptors.
    ///
    /// # Errors
    /// As sendmsg(2); `EPIPE` when the peer has gone.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.0.as_fd(), bytes, descriptors)
    }

    /// Receives one packet of at most `limit` bytes. Empty bytes mean that the peer has closed.
    ///
    /// # Errors
    /// As recvmsg(2); `InvalidData` when the packet or its descriptors exceed their limits.
    pub fn receive(&self, limit: usize) -> io::Result<Packet> {
        receive(self.0.as_fd(), limit, MAX_DESCRIPTORS)
    }

    /// As [`Self::receive`], but also returns a packet beyond its limits, or one without a descriptor that
    /// the kernel keeps from this process. The flag is true for a complete packet within its limits.
    ///
    /// # Errors
    /// As recvmsg(2).
    pub fn receive_any(&self, limit: usize, descriptors: usize) -> io::Result<(Packet, bool)> {
        receive_any(self.0.as_fd(), limit, descriptors)
    }

    /// The peer's credentials.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn peer(&self) -> io::Result<Peer> {
        peer(self.0.as_fd())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> Self {
        socket.0
    }
}

/// Whether a listener's connections name the sender of each packet: processes may share a connection
/// after a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Senders {
    /// Each packet names its sender ([`Packet::sender`]).
    Told,
    /// Packets do not name their sender.
    Untold,
}

/// The programs that may connect to a socket, by the mode and the owner of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connectable {
    /// Root's programs.
    ByRoot,
    /// Programs of root and of this user id.
    By(u32),
    /// All programs.
    ByEverybody,
}

/// Makes a listening packet socket at `path`, replacing what a dead daemon left there. The socket is made
/// under another name, and renamed to `path` when it listens and has its mode and owner. So the programs that
/// may connect reach either the former daemon's socket or this one, and are never refused for its mode.
///
/// # Errors
/// As bind(2), listen(2), chown(2) and rename(2).
pub fn listen(path: &Path, senders: Senders, connectable: Connectable) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    in_place(path, |path| {
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let mode = if connectable == Connectable::ByEverybody {
            0o666
        } else {
            0o600
        };
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        if let Connectable::By(uid) = connectable {
            std::os::unix::fs::chown(path, Some(uid), None)?;
        }
        // Set before the first connection, which inherits this option.
        rustix::net::sockopt::set_socket_passcred(&socket, senders == Senders::Told)?;
        Ok(rustix::net::listen(&socket, 1024)?)
    })?;
    Ok(socket)
}

/// Makes a socket's file by `make`, under another name in the same folder, and then renames it to `path`.
///
/// # Errors
/// The error of `make` or of rename(2). A file under the other name stays, and the next call replaces it.
pub fn in_place<T>(path: &Path, make: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    let making = path.with_file_name(name);
    remove_if_there(&making)?;
    let made = make(&making)?;
    std::fs::rename(&making, path)?;
    Ok(made)
}

/// Connects to the stream socket at `path`. Neither this nor writing takes longer than `limit`.
///
/// # Errors
/// As connect(2); `WouldBlock` when the listener accepts no connection in time.
pub fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Bounds connect(2) when the listener's queue is full (unix(7), SO_SNDTIMEO).
    rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if descriptors.len() > MAX_SENT_DESCRIPTORS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors",
        ));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SENT_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("no space for descriptors"));
    }
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

pub(crate) fn receive(socket: BorrowedFd<'_>, limit: usize, most: usize) -> io::Result<Packet> {
    match receive_any(socket, limit, most)? {
        (packet, true) => Ok(packet),
        (_, false) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "packet over its limit",
        )),
    }
}

/// Receives one packet with all its descriptors. Also returns whether it is within its limits: `limit` bytes
/// and `most` descriptors.
pub(crate) fn receive_any(
    socket: BorrowedFd<'_>,
    limit: usize,
    most: usize,
) -> io::Result<(Packet, bool)> {
    let mut bytes = vec![0; limit];
    // The kernel would close surplus descriptors at once, in this thread: see
    // `AsyncPacketSocket::receive_any`.
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut receive = || {
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    };
    let received = match receive() {
        // The peer has closed without reading everything that we sent. The kernel reports that once,
        // before it delivers what the peer had sent, such as a refusal.
        Err(Errno::CONNRESET) => receive()?,
        received => received?,
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    let mut sender = None;
    for message in ancillary.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(rights) => descriptors.extend(rights),
            RecvAncillaryMessage::ScmCredentials(credentials) => {
                sender = Some(rustix::process::Pid::as_raw(Some(credentials.pid)));
            }
            _ => {}
        }
    }
    let within = !received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        && descriptors.len() <= most;
    bytes.truncate(received.bytes);
    let packet = Packet {
        bytes,
        descriptors,
        sender,
    };
    Ok((packet, within))
}

pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let credentials = rustix::net::sockopt::socket_peercred(socket)?;
    Ok(Peer {
        uid: credentials.uid.as_raw(),
        pid: rustix::process::Pid::as_raw(Some(credentials.pid)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (PacketSocket, PacketSocket) {
        let flags = SocketFlags::CLOEXEC;
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        (PacketSocket(a), PacketSocket(b))
    }

    #[test]
    fn a_packet_arrives_whole_with_its_descriptor_and_its_sender() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = listen(&path, Senders::Told, Connectable::ByRoot).unwrap();
        let client = PacketSocket::connect(&path).unwrap();
        // Also for a packet that is sent before the connection is accepted.
        client.send(b"one", &[]).unwrap();
        let server =
            PacketSocket(rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap());
        client.send(b"two", &[listener.as_fd()]).unwrap();
        let first = server.receive(16).unwrap();
        assert_eq!(
            (first.bytes.as_slice(), first.descriptors.len()),
            (&b"one"[..], 0)
        );
        let second = server.receive(16).unwrap();
        assert_eq!(
            (second.bytes.as_slice(), second.descriptors.len()),
            (&b"two"[..], 1)
        );
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!((first.sender, second.sender), (Some(own), Some(own)));
        assert_eq!(
            server.peer().unwrap().uid,
            rustix::process::getuid().as_raw()
        );
    }

    #[test]
    fn a_socket_gets_its_name_when_it_may_be_connected_to() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        let _former = listen(&path, Senders::Untold, Connectable::ByEverybody).unwrap();
        assert_eq!(mode(&path), 0o666);
        // While another socket is made, the former one answers. Made twice, as after a daemon that died
        // meanwhile.
        for _ in 0..2 {
            in_place(&path, |making| {
                std::fs::write(making, "")?;
                assert_eq!(making.parent(), path.parent());
                PacketSocket::connect(&path).map(drop)?;
                Err::<(), _>(io::ErrorKind::Interrupted.into())
            })
            .unwrap_err();
        }
        let own = rustix::process::getuid().as_raw();
        let _next = listen(&path, Senders::Untold, Connectable::By(own)).unwrap();
        assert_eq!(mode(&path), 0o600);
        PacketSocket::connect(&path).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_last_packet_of_a_peer_that_has_not_read_ours_arrives() {
        let (here, there) = pair();
        here.send(b"a request", &[]).unwrap();
        there.send(b"refused", &[]).unwrap();
        drop(there);
        assert_eq!(here.receive(16).unwrap().bytes, b"refused");
        assert!(here.receive(16).unwrap().bytes.is_empty());
    }

    #[test]
    fn a_packet_over_the_limit_is_refused_and_the_next_one_is_not() {
        let (a, b) = pair();
        a.send(&[7; 17], &[]).unwrap();
        a.send(&[8; 16], &[]).unwrap();
        assert_eq!(
            b.receive(16).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(b.receive(16).unwrap().bytes, [8; 16]);
        drop(a);
        assert!(b.receive(16).unwrap().bytes.is_empty());
    }

    #[test]
    fn more_descriptors_than_a_packet_may_carry_are_refused() {
        let (socket, other) = pair();
        let many = [other.0.as_fd(); MAX_SENT_DESCRIPTORS + 1];
        assert!(socket.send(b"x", &many).is_err());
        for count in [MAX_DESCRIPTORS, MAX_DESCRIPTORS + 1] {
            socket.send(b"x", &many[..count]).unwrap();
            let received = other.receive(1);
            assert_eq!(received.is_ok(), count <= MAX_DESCRIPTORS);
        }
        socket.send(b"x", &many[..3]).unwrap();
        assert!(receive(other.0.as_fd(), 1, 3).is_ok());
    }
}
