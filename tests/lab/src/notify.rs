//! The service manager's side of `sd_notify(3)`: readiness and the file descriptor store. It follows
//! systemd's semantics, because systemd keeps the keeper's listeners in production.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, recvmsg, sendmsg_addr,
};

/// `FileDescriptorStoreMax=` of the keeper's unit: a listener for each pair of service and user.
pub(crate) const STORE_LIMIT: usize = 4096;

/// The name of descriptors stored without one (systemd.exec(5)).
const UNNAMED: &str = "stored";

/// The interval at which the receiving thread checks whether it is still needed.
const LOOK: Duration = Duration::from_millis(250);

/// The most descriptors in one message (`SCM_MAX_FD`).
const DESCRIPTORS: usize = 253;

/// The messages of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// `READY=1` since [`Unit::begin`].
    pub(crate) ready: bool,
    /// The last `STATUS=`.
    pub(crate) status: Option<String>,
    /// The number of `WATCHDOG=1` since [`Unit::begin`].
    beats: usize,
    /// The number of `EXTEND_TIMEOUT_USEC=` since [`Unit::begin`].
    extensions: usize,
    stored: Vec<Stored>,
}

#[derive(Debug)]
struct Stored {
    name: String,
    descriptor: OwnedFd,
    /// Removed when its other end closes, unless it came with `FDPOLL=0`.
    watched: bool,
}

/// A daemon's notification socket. A thread receives while the value exists.
#[derive(Debug)]
pub(crate) struct Unit {
    path: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    told: Mutex<Told>,
    changed: Condvar,
}

impl Unit {
    /// Binds the socket at `path`, for processes of every account.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        socket.set_read_timeout(Some(LOOK))?;
        let shared = Arc::new(Shared::default());
        let wanted = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name("notify".into())
            .spawn(move || {
                while let Some(shared) = wanted.upgrade() {
                    match receive(&socket) {
                        Ok((text, descriptors)) => shared.take(&text, descriptors),
                        Err(error)
                            if matches!(
                                error.kind(),
                                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                            ) => {}
                        Err(error) => {
                            eprintln!("usher-lab: notification socket: {error}");
                            return;
                        }
                    }
                }
            })?;
        let path = path.to_owned();
        Ok(Self { path, shared })
    }

    /// Notes that the daemon is started (again): it is not ready, and keeps its stored descriptors.
    pub(crate) fn begin(&self) {
        let mut told = self.shared.told();
        told.ready = false;
        told.status = None;
        told.beats = 0;
        told.extensions = 0;
    }

    /// Waits for a change, at most for `limit`, and returns whether the daemon is ready.
    pub(crate) fn wait_ready(&self, limit: Duration) -> bool {
        let told = self.shared.told();
        let (told, _) = self
            .shared
            .changed
            .wait_timeout_while(told, limit, |told| !told.ready)
            .unwrap_or_else(PoisonError::into_inner);
        told.ready
    }

    /// The last `STATUS=` of the daemon.
    pub(crate) fn status(&self) -> Option<String> {
        self.shared.told().status.clone()
    }

    /// The number of watchdog messages from the daemon.
    pub(crate) fn beats(&self) -> io::Result<usize> {
        self.catch_up()?;
        Ok(self.shared.told().beats)
    }

    /// How many times the daemon has asked for more time.
    pub(crate) fn extensions(&self) -> io::Result<usize> {
        self.catch_up()?;
        Ok(self.shared.told().extensions)
    }

    /// Waits until every message sent before has been received: `sd_notify_barrier(3)`.
    fn catch_up(&self) -> io::Result<()> {
        let (mut end, other_end) = io::pipe()?;
        let socket = UnixDatagram::unbound()?;
        let address = SocketAddrUnix::new(&self.path)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let passed = [other_end.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&passed));
        let text = [IoSlice::new(b"BARRIER=1")];
        sendmsg_addr(&socket, &address, &text, &mut ancillary, SendFlags::empty())?;
        drop(other_end);
        end.read_to_end(&mut Vec::new())?;
        Ok(())
    }

    /// Duplicates of the stored descriptors, in the order of storing. Those whose other end has closed
    /// are removed first.
    pub(crate) fn stored(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let mut told = self.shared.told();
        told.drop_hung_up()?;
        told.stored
            .iter()
            .map(|stored| Ok((stored.name.clone(), stored.descriptor.try_clone()?)))
            .collect()
    }

    /// Empties the store, as systemd does when a unit is stopped and not restarted.
    pub(crate) fn clear(&self) {
        self.shared.told().stored.clear();
    }
}

impl Shared {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, text: &str, descriptors: Vec<OwnedFd>) {
        if let Err(error) = self.told().take(text, descriptors) {
            eprintln!("usher-lab: notification {text:?}: {error}");
        }
        self.changed.notify_all();
    }
}

impl Told {
    /// Handles one message: lines `NAME=value`. Descriptors that are not to be stored are closed,
    /// which is also the answer to `BARRIER=1`.
    fn take(&mut self, text: &str, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let value = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        };
        if value("READY") == Some("1") {
            self.ready = true;
        }
        if value("EXTEND_TIMEOUT_USEC").is_some() {
            self.extensions += 1;
        }
        if value("WATCHDOG") == Some("1") {
            self.beats += 1;
        }
        if let Some(status) = value("STATUS") {
            self.status = Some(status.into());
        }
        let name = value("FDNAME").filter(|name| is_descriptor_name(name));
        if value("FDSTOREREMOVE") == Some("1") {
            // Without a name nothing is removed.
            if let Some(name) = name {
                self.stored.retain(|stored| stored.name != name);
            }
        } else if value("FDSTORE") == Some("1") {
            let watched = value("FDPOLL") != Some("0");
            for descriptor in descriptors {
                self.store(name.unwrap_or(UNNAMED), descriptor, watched)?;
            }
        }
        Ok(())
    }

    fn store(&mut self, name: &str, descriptor: OwnedFd, watched: bool) -> io::Result<()> {
        for stored in &self.stored {
            // The same open file is kept once, under its first name.
            if same_file(&stored.descriptor, &descriptor)? {
                return Ok(());
            }
        }
        if self.stored.len() >= STORE_LIMIT {
            return Err(io::Error::other("the file descriptor store is full"));
        }
        self.stored.push(Stored {
            name: name.into(),
            descriptor,
            watched,
        });
        Ok(())
    }

    fn drop_hung_up(&mut self) -> io::Result<()> {
        let mut kept = Vec::with_capacity(self.stored.len());
        for stored in self.stored.drain(..) {
            if !(stored.watched && has_hung_up(&stored.descriptor)?) {
                kept.push(stored);
            }
        }
        self.stored = kept;
        Ok(())
    }
}

fn receive(socket: &UnixDatagram) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut text = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut text)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::other("a notification of more than 4096 bytes"));
    }
    Ok((
        String::from_utf8_lossy(&text[..received.bytes]).into_owned(),
        descriptors,
    ))
}

/// As in systemd: at most 255 printable ASCII characters, without the colon that separates the
/// names in `LISTEN_FDNAMES`.
fn is_descriptor_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && name
            .bytes()
            .all(|byte| (b' '..127).contains(&byte) && byte != b':')
}

fn same_file(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn has_hung_up(descriptor: &OwnedFd) -> io::Result<bool> {
    let mut descriptors = [PollFd::new(descriptor, PollFlags::empty())];
    poll(&mut descriptors, Some(&Timespec::default()))?;
    Ok(descriptors[0]
        .revents()
        .intersects(PollFlags::HUP | PollFlags::ERR))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use super::{Told, is_descriptor_name};

    fn names(told: &Told) -> Vec<&str> {
        told.stored
            .iter()
            .map(|stored| stored.name.as_str())
            .collect()
    }

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").expect("a listener on loopback")
    }

    #[test]
    fn a_descriptor_is_stored_under_its_name_and_removed_by_it() {
        let mut told = Told::default();
        told.take("FDSTORE=1\nFDNAME=a", vec![listener().into()])
            .unwrap();
        told.take("FDSTORE=1", vec![listener().into()]).unwrap();
        assert_eq!(names(&told), ["a", "stored"]);
        told.take("FDSTOREREMOVE=1\nFDNAME=b", vec![]).unwrap();
        assert_eq!(names(&told), ["a", "stored"]);
        told.take("FDSTOREREMOVE=1\nFDNAME=a", vec![]).unwrap();
        assert_eq!(names(&told), ["stored"]);
    }

    #[test]
    fn the_same_socket_is_stored_once_and_another_beside_it() {
        let mut told = Told::default();
        let socket = listener();
        let duplicate = socket.try_clone().unwrap();
        told.take("FDSTORE=1\nFDNAME=a", vec![socket.into()])
            .unwrap();
        told.take("FDSTORE=1\nFDNAME=b", vec![duplicate.into()])
            .unwrap();
        assert_eq!(names(&told), ["a"]);
        told.take("FDSTORE=1\nFDNAME=b", vec![listener().into()])
            .unwrap();
        assert_eq!(names(&told), ["a", "b"]);
    }

    #[test]
    fn descriptors_are_kept_only_when_asked_for() {
        let mut told = Told::default();
        told.take("READY=1", vec![listener().into()]).unwrap();
        told.take("BARRIER=1", vec![listener().into()]).unwrap();
        assert!(told.ready);
        assert!(names(&told).is_empty());
    }

    #[test]
    fn what_lost_its_other_end_goes_unless_that_was_switched_off() {
        let mut told = Told::default();
        let (watched, watched_peer) = UnixStream::pair().unwrap();
        let (unwatched, unwatched_peer) = UnixStream::pair().unwrap();
        told.take("FDSTORE=1\nFDNAME=watched", vec![watched.into()])
            .unwrap();
        told.take(
            "FDSTORE=1\nFDNAME=unwatched\nFDPOLL=0",
            vec![unwatched.into()],
        )
        .unwrap();
        told.take("FDSTORE=1\nFDNAME=listener", vec![listener().into()])
            .unwrap();
        told.drop_hung_up().unwrap();
        assert_eq!(names(&told), ["watched", "unwatched", "listener"]);
        drop((watched_peer, unwatched_peer));
        told.drop_hung_up().unwrap();
        assert_eq!(names(&told), ["unwatched", "listener"]);
    }

    #[test]
    fn names_that_would_break_the_list_of_names_are_not_taken() {
        assert!(is_descriptor_name("imap-2001"));
        for name in ["", "a:b", "a\u{7f}", &"x".repeat(256)] {
            assert!(!is_descriptor_name(name), "{name:?}");
        }
        let mut told = Told::default();
        told.take("FDSTORE=1\nFDNAME=a:b", vec![listener().into()])
            .unwrap();
        assert_eq!(names(&told), ["stored"]);
    }
}
