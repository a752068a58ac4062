//! The admission tables and programs of `bpf/admission`, as the keeper uses them.

mod layout;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{
    ErrorKind, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput,
};
use rustix::fs::{Mode, OFlags};
use usher_proto::connection::ConnectionTuple;
use usher_proto::session_id::SessionId;

use crate::KernelError;
use layout::Step;
pub use layout::{AdmissionRow, AdmissionState, Announced, Ended, SessionRecord};

pub(crate) static PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/admission.bpf.o"));

/// Magic number of a BPF file system (statfs(2)).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// Service ports the table holds.
const SERVICES: usize = 1024;

/// Sizes of the tables. A full table refuses; nothing is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at one time.
    pub sessions: u32,
    /// Announced and established connections at one time.
    pub admissions: u32,
    /// Pairs of service and user at one time.
    pub listeners: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 65_536,
            admissions: 65_536,
            listeners: 4_096,
        }
    }
}

/// Why a connection could not be announced.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// The table is full.
    #[error("the admission table is full")]
    Full,
    /// The four-tuple is announced or in use.
    #[error("this connection is announced already")]
    AlreadyAnnounced,
    /// The kernel refused.
    #[error(transparent)]
    Kernel(KernelError),
}

/// Why a session could not be entered.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It is there already.
    #[error("this session is there already")]
    Exists,
    /// The table is full.
    #[error("the session table is full")]
    Full,
    /// The kernel refused.
    #[error(transparent)]
    Kernel(KernelError),
}

/// Why a listener could not be entered.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// The table is full.
    #[error("the listener table is full")]
    Full,
    /// The kernel refused.
    #[error(transparent)]
    Kernel(KernelError),
}

/// What happened since the tables were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// SYNs handed to a user's queue.
    pub admitted: u64,
    /// SYNs of connections that nobody had announced.
    pub refused_unannounced: u64,
    /// SYNs after their deadline.
    pub refused_late: u64,
    /// SYNs of connections that had been withdrawn or are there already.
    pub refused_state: u64,
    /// SYNs whose queue was gone.
    pub refused_no_listener: u64,
    /// Connections established.
    pub established: u64,
    /// Connections closed.
    pub closed: u64,
    /// Connections established without an entry.
    pub untracked: u64,
}

impl Counters {
    /// Names and numbers, for views.
    #[must_use]
    pub fn named(&self) -> [(String, u64); 8] {
        [
            ("admitted".into(), self.admitted),
            ("refused_unannounced".into(), self.refused_unannounced),
            ("refused_late".into(), self.refused_late),
            ("refused_state".into(), self.refused_state),
            ("refused_no_listener".into(), self.refused_no_listener),
            ("established".into(), self.established),
            ("closed".into(), self.closed),
            ("untracked".into(), self.untracked),
        ]
    }
}

/// The tables and programs, loaded and attached. Dropping it leaves them pinned and in force.
pub struct Admission {
    object: Object,
    services: MapHandle,
    listeners: MapHandle,
    admissions: MapHandle,
    sessions: MapHandle,
    counters: MapHandle,
    untracked: MapHandle,
}

impl Admission {
    /// Makes the tables, or takes up those an earlier keeper pinned below `pins`; loads the
    /// programs afresh, attaches them to the caller's network namespace and to `cgroup` (where
    /// the listeners will be made), and only then lets the earlier programs go, so that an upgrade
    /// leaves no gap.
    ///
    /// # Errors
    /// [`KernelError::Layout`] when pinned tables have another version or size,
    /// [`KernelError::NoBpfFileSystem`], or what the kernel refuses; whatever was in force stays.
    pub fn open(pins: &Path, cgroup: &Path, limits: &Limits) -> Result<Self, KernelError> {
        make_pin_directory(pins)?;
        let object = load(pins, limits)?;
        let map = |name: &'static str| {
            object
                .maps()
                .find(|map| map.name() == name)
                .ok_or(libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
                .and_then(|map| MapHandle::try_from(&map))
                .map_err(KernelError::bpf(name))
        };
        let admission = Self {
            services: map("services")?,
            listeners: map("listeners")?,
            admissions: map("admissions")?,
            sessions: map("sessions")?,
            counters: map("counters")?,
            untracked: map("untracked")?,
            object,
        };
        admission.attach(pins, cgroup)?;
        Ok(admission)
    }

    fn attach(&self, pins: &Path, cgroup: &Path) -> Result<(), KernelError> {
        let open = |path: &Path| {
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(
                |error| KernelError::File {
                    what: "opening",
                    path: path.into(),
                    error: error.into(),
                },
            )
        };
        let namespace = open(Path::new("/proc/self/ns/net"))?;
        let cgroup = open(cgroup)?;
        // Establishment is followed before anything is admitted.
        let track = self
            .program("usher_track")?
            .attach_cgroup(cgroup.as_raw_fd())
            .map_err(KernelError::bpf("attaching to the keeper's cgroup"))?;
        replace_pin(track, &pins.join("track"))?;
        let admit = self
            .program("usher_admit")?
            .attach_netns(namespace.as_raw_fd())
            .map_err(KernelError::bpf("attaching to the network namespace"))?;
        replace_pin(admit, &pins.join("admit"))
    }

    fn program(&self, name: &'static str) -> Result<libbpf_rs::ProgramMut<'_>, KernelError> {
        self.object
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or(libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
            .map_err(KernelError::bpf(name))
    }

    /// Puts these ports (port, service id) and no others under admission. New ones first: a port
    /// is never open in between.
    ///
    /// # Errors
    /// [`KernelError::TooManyServices`], before anything has changed.
    pub fn set_services(&self, services: &[(u16, u32)]) -> Result<(), KernelError> {
        if services.len() > SERVICES {
            return Err(KernelError::TooManyServices);
        }
        let wanted: Vec<[u8; 4]> = services
            .iter()
            .map(|(port, _)| u32::from(*port).to_ne_bytes())
            .collect();
        let present: Vec<Vec<u8>> = self.services.keys().collect();
        let added = wanted
            .iter()
            .filter(|key| !present.iter().any(|old| old == *key))
            .count();
        if present.len() + added > SERVICES {
            return Err(KernelError::TooManyServices);
        }
        for (key, (_, service)) in wanted.iter().zip(services) {
            self.services
                .update(key, &service.to_ne_bytes(), MapFlags::ANY)
                .map_err(KernelError::bpf("entering a service port"))?;
        }
        for key in present {
            if !wanted.iter().any(|wanted| *wanted == *key) {
                delete(&self.services, &key, "taking out a service port")?;
            }
        }
        Ok(())
    }

    /// Enters the listener of a user at a service.
    ///
    /// # Errors
    /// [`ListenerError::Full`], or what the kernel refuses (a socket that does not listen).
    pub fn add_listener(
        &self,
        service: u32,
        uid: u32,
        listener: BorrowedFd<'_>,
    ) -> Result<(), ListenerError> {
        // The kernel takes the descriptor's number from the value (bpf_map_update_elem on a
        // sockhash).
        let value = u64::from(listener.as_raw_fd().unsigned_abs()).to_ne_bytes();
        self.listeners
            .update(&layout::queue(service, uid), &value, MapFlags::ANY)
            .map_err(|error| match error.kind() {
                ErrorKind::TooBig => ListenerError::Full,
                _ => ListenerError::Kernel(KernelError::Bpf {
                    what: "entering a listener",
                    error,
                }),
            })
    }

    /// Takes a listener out; nothing more is admitted to it. None there: fine.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_listener(&self, service: u32, uid: u32) -> Result<(), KernelError> {
        delete(
            &self.listeners,
            &layout::queue(service, uid),
            "taking out a listener",
        )
    }

    /// Lets the SYN of `connection` in until its lifetime ends.
    ///
    /// # Errors
    /// See [`AnnounceError`].
    pub fn announce(
        &self,
        connection: &ConnectionTuple,
        announced: &Announced,
    ) -> Result<(), AnnounceError> {
        let value = layout::encode_announced(announced, layout::monotonic());
        self.admissions
            .update(&connection.encode(), &value, MapFlags::NO_EXIST)
            .map_err(|error| match error.kind() {
                ErrorKind::TooBig => AnnounceError::Full,
                ErrorKind::AlreadyExists => AnnounceError::AlreadyAnnounced,
                _ => AnnounceError::Kernel(KernelError::Bpf {
                    what: "announcing",
                    error,
                }),
            })
    }

    /// Lets no further SYN of `connection` in, if this session announced it. A handshake under
    /// way may finish. Nothing there: fine.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn withdraw(
        &self,
        connection: &ConnectionTuple,
        session: &SessionId,
    ) -> Result<(), KernelError> {
        self.step(connection, Some(session), Step::Withdraw)
            .map(|_| ())
    }

    /// Drops the entry of a connection that is not established, whatever its deadline: one that
    /// still completes its handshake is then untracked. An established one stays until it closes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget(&self, connection: &ConnectionTuple) -> Result<(), KernelError> {
        self.step(connection, None, Step::Forget).map(|_| ())
    }

    /// Drops entries whose deadline has passed; returns how many.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn sweep(&self) -> Result<usize, KernelError> {
        let mut swept = 0;
        for row in self.admissions()? {
            if row.state != AdmissionState::Established
                && self.step(&row.connection, None, Step::Expire)?
            {
                swept += 1;
            }
        }
        Ok(swept)
    }

    fn step(
        &self,
        connection: &ConnectionTuple,
        session: Option<&SessionId>,
        step: Step,
    ) -> Result<bool, KernelError> {
        let mut argument = layout::encode_step(connection, session, step);
        let input = ProgramInput {
            context_in: Some(&mut argument),
            ..ProgramInput::default()
        };
        let output = self
            .program("usher_take_step")?
            .test_run(input)
            .map_err(KernelError::bpf("stepping an admission"))?;
        Ok(output.return_value == 1)
    }

    /// All announced and live connections.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn admissions(&self) -> Result<Vec<AdmissionRow>, KernelError> {
        let now = layout::monotonic();
        Ok(entries(&self.admissions, "reading the admission table")?
            .into_iter()
            .filter_map(|(key, value)| layout::decode_admission(&key, &value, now))
            .collect())
    }

    /// Enters a session that must not be there yet.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn insert_session(
        &self,
        session: &SessionId,
        record: &SessionRecord,
    ) -> Result<(), SessionError> {
        let value = layout::encode_session(record);
        self.sessions
            .update(session.as_bytes(), &value, MapFlags::NO_EXIST)
            .map_err(|error| match error.kind() {
                ErrorKind::TooBig => SessionError::Full,
                ErrorKind::AlreadyExists => SessionError::Exists,
                _ => SessionError::Kernel(KernelError::Bpf {
                    what: "entering a session",
                    error,
                }),
            })
    }

    /// Looks a session up, live or ended.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn session(&self, session: &SessionId) -> Result<Option<SessionRecord>, KernelError> {
        let value = self
            .sessions
            .lookup(session.as_bytes(), MapFlags::ANY)
            .map_err(KernelError::bpf("looking up a session"))?;
        Ok(value.as_deref().and_then(layout::decode_session))
    }

    /// Replaces the record of a session that is there.
    ///
    /// # Errors
    /// When it is not there, or the kernel refuses.
    pub fn update_session(
        &self,
        session: &SessionId,
        record: &SessionRecord,
    ) -> Result<(), KernelError> {
        self.sessions
            .update(
                session.as_bytes(),
                &layout::encode_session(record),
                MapFlags::EXIST,
            )
            .map_err(KernelError::bpf("updating a session"))
    }

    /// Takes a session out. Not there: fine.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_session(&self, session: &SessionId) -> Result<(), KernelError> {
        delete(&self.sessions, session.as_bytes(), "taking out a session")
    }

    /// All sessions, live and ended.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn sessions(&self) -> Result<Vec<(SessionId, SessionRecord)>, KernelError> {
        Ok(entries(&self.sessions, "reading the session table")?
            .into_iter()
            .filter_map(|(key, value)| {
                let session = SessionId::from_bytes(key.try_into().ok()?);
                Some((session, layout::decode_session(&value)?))
            })
            .collect())
    }

    /// What happened since the tables were made.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counters(&self) -> Result<Counters, KernelError> {
        let read = |number: u32| -> Result<u64, KernelError> {
            let cpus = self
                .counters
                .lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY)
                .map_err(KernelError::bpf("reading a counter"))?
                .unwrap_or_default();
            Ok(cpus
                .iter()
                .filter_map(|value| Some(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?)))
                .sum())
        };
        Ok(Counters {
            admitted: read(0)?,
            refused_unannounced: read(1)?,
            refused_late: read(2)?,
            refused_state: read(3)?,
            refused_no_listener: read(4)?,
            established: read(5)?,
            closed: read(6)?,
            untracked: read(7)?,
        })
    }

    /// Connections that were established although their entry was gone, since the last call.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn drain_untracked(&self) -> Result<Vec<ConnectionTuple>, KernelError> {
        let found = std::cell::RefCell::new(Vec::new());
        let mut builder = libbpf_rs::RingBufferBuilder::new();
        builder
            .add(&self.untracked, |bytes| {
                if let Some(connection) = bytes
                    .get(..36)
                    .and_then(|bytes| bytes.try_into().ok())
                    .and_then(|bytes| ConnectionTuple::decode(bytes).ok())
                {
                    found.borrow_mut().push(connection);
                }
                0
            })
            .map_err(KernelError::bpf("reading untracked connections"))?;
        let ring = builder
            .build()
            .map_err(KernelError::bpf("reading untracked connections"))?;
        ring.consume()
            .map_err(KernelError::bpf("reading untracked connections"))?;
        drop(ring);
        Ok(found.into_inner())
    }
}

fn make_pin_directory(pins: &Path) -> Result<(), KernelError> {
    let file_error = |error: std::io::Error| KernelError::File {
        what: "making",
        path: pins.into(),
        error,
    };
    let parent = pins.parent().unwrap_or(Path::new("/"));
    let kind = rustix::fs::statfs(parent)
        .map_err(|error| file_error(error.into()))?
        .f_type;
    #[allow(
        clippy::unnecessary_cast,
        reason = "its type differs between architectures"
    )]
    if kind as i64 != BPF_FS_MAGIC {
        return Err(KernelError::NoBpfFileSystem(pins.into()));
    }
    match rustix::fs::mkdir(pins, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(file_error(error.into())),
    }
}

fn load(pins: &Path, limits: &Limits) -> Result<Object, KernelError> {
    let mut object = ObjectBuilder::default()
        .open_memory(PROGRAMS)
        .map_err(KernelError::bpf("reading the programs"))?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        // The compiler's own constants (.rodata) are nobody's state.
        if name.contains('.') {
            continue;
        }
        let size = match name.as_str() {
            "sessions" => Some(limits.sessions),
            "admissions" => Some(limits.admissions),
            "listeners" => Some(limits.listeners),
            _ => None,
        };
        if let Some(size) = size {
            map.set_max_entries(size)
                .map_err(KernelError::bpf("sizing a table"))?;
        }
        map.set_pin_path(pins.join(&name))
            .map_err(KernelError::bpf("naming a pin"))?;
    }
    object.load().map_err(|error| match error.kind() {
        // What libbpf says of a pinned map that differs from the one asked for.
        ErrorKind::InvalidInput if pins.join("sessions").exists() => KernelError::Layout {
            pins: pins.into(),
            error,
        },
        _ => KernelError::Bpf {
            what: "loading the admission programs",
            error,
        },
    })
}

/// Pins a link, in place of an earlier one: rename(2) on the BPF file system swaps them, and the
/// earlier link goes with its last name.
fn replace_pin(mut link: Link, path: &Path) -> Result<(), KernelError> {
    // Names with a dot are the file system's own (EPERM).
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!("{name}-new"));
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(KernelError::File {
                what: "replacing",
                path: fresh,
                error,
            });
        }
        _ => {}
    }
    link.pin(&fresh)
        .map_err(KernelError::bpf("pinning a link"))?;
    std::fs::rename(&fresh, path).map_err(|error| KernelError::File {
        what: "replacing",
        path: PathBuf::from(path),
        error,
    })
}

fn delete(map: &MapHandle, key: &[u8], what: &'static str) -> Result<(), KernelError> {
    match map.delete(key) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(KernelError::Bpf { what, error }),
    }
}

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// All entries. One that is deleted meanwhile is left out; one that comes meanwhile may be.
fn entries(map: &MapHandle, what: &'static str) -> Result<Vec<Entry>, KernelError> {
    map.lookup_batch(4096, MapFlags::ANY, MapFlags::ANY)
        .map(Iterator::collect)
        .map_err(KernelError::bpf(what))
}

// Whoever waits for untracked connections can do so on the ring's descriptor.
impl AsFd for Admission {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.untracked.as_fd()
    }
}
