//! Guards: which socket's connection between two ends may begin (bpf/ticket/guard.bpf.c).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use usher_proto::{ConnectionTuple, SessionId};

use super::holding::Attempt;
use super::layout::{self, Ends};
use super::told;
use super::types::TicketError;
use crate::admission::programs::{clone, exists, file_error, lock};
use crate::admission::table::{self, Table};
use crate::clock::{after, boot_time};
use crate::{KernelError, attach, cgroup};

/// The compiled bpf/ticket/guard.
pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard.bpf.o"));

const PROGRAM: &str = "guard_syn";
/// What outlives the signer. The link's name goes on with the number of its cgroup.
const PINNED: [&str; 2] = ["guards", "holds"];

/// What a guard says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// Whose connection with these ends is the only one that may begin.
    pub attempt: Attempt,
    /// Whether it may now.
    pub released: bool,
    /// How long it stands unless it is taken away.
    pub lifetime: Duration,
    /// In which session the ends are announced, where that is known.
    pub session: Option<SessionId>,
}

/// A guard that an earlier signer has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftGuard {
    /// The ends that it stands for.
    pub connection: ConnectionTuple,
    /// In which session they were announced, where that was known.
    pub session: Option<SessionId>,
    /// How long it stands yet.
    pub lifetime: Duration,
}

/// The guards in force.
pub struct Guards {
    table: Table<Ends, layout::Guard>,
    kept_back: OwnedFd,
    left: Vec<LeftGuard>,
    lasting: Result<(), KernelError>,
}

impl Guards {
    /// What an earlier process left when it ended, as of the opening.
    pub fn left(&self) -> &[LeftGuard] {
        &self.left
    }

    /// Whether guards stand on when this process ends.
    ///
    /// # Errors
    /// Why they do not.
    pub fn lasting(&self) -> Result<(), &KernelError> {
        match &self.lasting {
            Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// From now on no SYN with these ends leaves but as the guard says. In the place of a former
    /// guard of theirs.
    ///
    /// # Errors
    /// [`TicketError::Full`], or what the kernel says.
    pub fn put(&self, connection: &ConnectionTuple, guard: &Guard) -> Result<(), TicketError> {
        let guard = layout::Guard::new(guard, boot_time());
        told(self.table.put(&connection.encode(), &guard)?)
    }

    /// These ends are nobody's any longer. False: they had no guard.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove(&self, connection: &ConnectionTuple) -> Result<bool, KernelError> {
        self.table.remove(&connection.encode())
    }

    /// Whether a guard stands for these ends.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn stands(&self, connection: &ConnectionTuple) -> Result<bool, KernelError> {
        let guard = self.table.get(&connection.encode())?;
        Ok(guard.is_some_and(|guard| guard.until_ns > boot_time()))
    }

    /// SYNs that were kept back because their ends were another connection's.
    pub(super) fn kept_back(&self) -> Result<u64, KernelError> {
        Ok(table::per_cpu::<u64>(self.kept_back.as_fd(), 0)?
            .iter()
            .sum())
    }
}

/// The socket's connection, whichever of its connect(2) begins it.
pub(super) fn attempt_of(socket: BorrowedFd<'_>) -> Result<Attempt, KernelError> {
    const SO_COOKIE: libc::c_int = 57;
    let mut cookie = 0_u64;
    let mut size: libc::socklen_t = 8;
    // SAFETY: the number and its size live until the call returns, and the size is the number's.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &mut size,
        )
    };
    if code != 0 {
        return Err(KernelError::system("asking for the cookie of a socket")(
            io::Error::last_os_error(),
        ));
    }
    Ok(Attempt {
        cookie,
        begun_ns: 0,
    })
}

/// The program, loaded and not attached yet, and its tables, which the programs that hold share.
pub(super) struct Loaded {
    object: Object,
    pins: Option<Pins>,
    lasting: Result<(), KernelError>,
}

/// The folder of the pins, locked so that no second signer works on it.
struct Pins {
    folder: std::path::PathBuf,
    lock: std::fs::File,
}

impl Loaded {
    /// Takes up what is pinned in the folder `pins`, or makes it. Where that cannot be, or without
    /// a folder, guards end with this process.
    pub(super) fn new(pins: Option<&Path>, limit: u32) -> Result<Self, KernelError> {
        let lasting = match pins {
            Some(pins) => Self::pinned(pins, limit),
            None => Err(KernelError::MissingPart("a folder for pins")),
        };
        match lasting {
            Ok(loaded) => Ok(loaded),
            // Another signer's: it is not to be guessed which one is meant.
            Err(error @ KernelError::InUse { .. }) => Err(error),
            Err(error) => Ok(Self {
                object: load(None, limit)?,
                pins: None,
                lasting: Err(error),
            }),
        }
    }

    fn pinned(folder: &Path, limit: u32) -> Result<Self, KernelError> {
        let lock = lock(folder)?;
        let object = match load(Some(folder), limit) {
            Ok(object) => object,
            // Of another version, or another limit: what stands there means nothing here.
            Err(error) => {
                tracing::warn!(%error, "guards of an earlier signer are given up");
                give_up(folder)?;
                load(Some(folder), limit)?
            }
        };
        let folder = folder.to_owned();
        Ok(Self {
            object,
            pins: Some(Pins { folder, lock }),
            lasting: Ok(()),
        })
    }

    pub(super) fn map(&self, name: &'static str) -> Result<MapHandle, KernelError> {
        let map = self
            .object
            .maps()
            .find(|map| map.name() == name)
            .ok_or(KernelError::MissingPart(name))?;
        MapHandle::try_from(&map).map_err(KernelError::bpf("keeping a table"))
    }

    /// Has `hold` decide about what no guard decides about, and attaches to the cgroup `group`.
    /// What this gives besides is to be kept open as long as that is to be so.
    pub(super) fn attach(
        self,
        group: &Path,
        hold: BorrowedFd<'_>,
    ) -> Result<(Guards, Vec<OwnedFd>), KernelError> {
        let holding = self.map("holding")?;
        holding
            .update(
                &0_u32.to_ne_bytes(),
                &hold.as_raw_fd().to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(KernelError::bpf("attaching to the guards"))?;
        let mut kept = vec![clone(&holding)?];
        match &self.pins {
            Some(pins) => {
                attach::pinned(&self.object, PROGRAM, &pins.folder, group)?;
                kept.push(clone(&pins.lock)?);
            }
            None => kept.extend(attach::to_cgroup(&self.object, &[PROGRAM], group)?),
        }
        // What is sent in a connection's place comes from the caller's own group.
        let own = cgroup::own()?;
        if !own.starts_with(group) {
            kept.extend(attach::to_cgroup(&self.object, &[PROGRAM], &own)?);
        }
        let table = Table::new("guards", clone(&self.map("guards")?)?);
        let guards = Guards {
            left: left(&table)?,
            table,
            kept_back: clone(&self.map("kept_back")?)?,
            lasting: self.lasting,
        };
        Ok((guards, kept))
    }
}

/// What stands; what has ended is removed.
fn left(table: &Table<Ends, layout::Guard>) -> Result<Vec<LeftGuard>, KernelError> {
    let now = boot_time();
    let mut left = Vec::new();
    for (ends, guard) in table.entries()? {
        let connection = ConnectionTuple::decode(&ends);
        match connection {
            Ok(connection) if guard.until_ns > now => left.push(LeftGuard {
                connection,
                session: guard.session(),
                lifetime: Duration::from_nanos(guard.until_ns - now),
            }),
            _ => drop(table.remove(&ends)?),
        }
    }
    Ok(left)
}

fn load(pins: Option<&Path>, limit: u32) -> Result<Object, KernelError> {
    let mut open = ObjectBuilder::default()
        .name("usher_guard")
        .and_then(|builder| builder.open_memory(OBJECT))
        .map_err(KernelError::bpf("reading the guard program"))?;
    for mut map in open.maps_mut() {
        if map.name() == "guards" {
            map.set_max_entries(limit)
                .map_err(KernelError::bpf("sizing a table"))?;
        }
        if let Some(pins) = pins
            && PINNED.iter().any(|name| map.name() == *name)
        {
            map.set_pin_path(pins.join(map.name()))
                .map_err(KernelError::bpf("naming a pin"))?;
        }
    }
    open.load()
        .map_err(KernelError::bpf("loading the guard program"))
}

/// Removes all pins.
fn give_up(folder: &Path) -> Result<(), KernelError> {
    if !exists(folder)? {
        return Ok(());
    }
    let failed = file_error("reading", folder);
    for entry in std::fs::read_dir(folder).map_err(&failed)? {
        attach::unpin(&entry.map_err(&failed)?.path())?;
    }
    Ok(())
}

impl layout::Guard {
    fn new(guard: &Guard, now: u64) -> Self {
        Self {
            cookie: guard.attempt.cookie,
            begun_ns: guard.attempt.begun_ns,
            until_ns: after(now, guard.lifetime),
            released: guard.released.into(),
            session: guard.session.map_or([0; 16], |session| *session.as_bytes()),
        }
    }

    fn session(&self) -> Option<SessionId> {
        (self.session != [0; 16]).then(|| SessionId::from_bytes(self.session))
    }
}
