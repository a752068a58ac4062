//! The keeper's interface to the admission programs and their tables (bpf/authentication/admission).
//!
//! Everything is pinned below one folder of a bpffs, so that sessions, admissions and the programs
//! in force outlive the keeper: while it is away, announced connections are still admitted, and
//! everything else is still refused.

mod arriving;
mod layout;
mod tokens;
mod types;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use usher_base::ConnectionTuple;
pub use usher_bpf::Unattached;
use usher_bpf::{Code, Filter, Insertion, Lack, Pins, Ring, Table, code, program_id, run};
use usher_proto::{Certified, SessionId};

use crate::KernelError;
use crate::clock::{after, boot_time};
pub use crate::shared::admission::Counters;
use crate::shared::admission::{
    Admission as Entry, Certificate, ClientAddress, EXPIRE, FORGET, LAYOUT_VERSION, Removal,
    Session, Target, WITHDRAW,
};
use crate::shared::key;
use arriving::Arriving;
pub(crate) use arriving::probe as probe_arriving;
use tokens::Tokens;
pub use tokens::{TokenError, TokenRow, TokenSession};
pub use types::{
    AdmissionRow, AdmissionState, AnnounceError, Announced, Ended, Limits, SessionError,
    SessionRecord, UnreadableRow,
};

/// bpf/authentication/admission.
pub(crate) static CODE: Code = code!("usher", "admission");

/// The place of check_token at every interface, on kernels before 6.6: before most other filters, because an
/// earlier filter that decides about a packet would hide the packet from it.
pub(crate) const FILTER: Filter = Filter {
    priority: 3,
    handle: 0x5573,
};

/// The admission programs in force, and their tables.
///
/// Dropping it leaves them in force: to end that, remove the folder of the pins. All methods may
/// be called from several threads at once.
#[derive(Debug)]
pub struct Admission {
    services: Table<u32, u32>,
    listeners: Table<Target, u64>,
    admissions: Table<[u8; 36], Entry>,
    sessions: Table<[u8; 16], Session>,
    certificates: Table<[u8; 16], Certificate>,
    counters: usher_bpf::Counters<Counters>,
    tokens: Tokens,
    client_addresses: Table<ClientAddress, u8>,
    outstanding: Table<Target, u64>,
    remove: OwnedFd,
    check_token: OwnedFd,
    /// The program that reads tokens at LOCAL_IN; or the reason that the kernel does not accept it, so
    /// that filters at interfaces read them.
    arriving: Result<Arriving, Lack>,
    untracked: Ring<ConnectionTuple>,
    last_number: AtomicU64,
    pins: Pins,
}

impl Admission {
    /// Loads the programs, or adopts the tables that an earlier keeper pinned under `pins`, a folder of a
    /// bpffs that is made if need be. Attaches to the caller's network namespace and to `cgroup` (the path of
    /// its folder), which must be the one in which the keeper makes its listeners, or above it. From kernel
    /// 6.6 on, this also begins to read tokens; on earlier kernels the caller does so by
    /// [`Admission::attach_tokens`]. Programs in force are replaced in place: there is no moment without
    /// admission, and established connections notice nothing.
    ///
    /// # Errors
    /// [`KernelError::InUse`] while another `Admission` holds `pins`; [`KernelError::Guarded`],
    /// [`KernelError::OtherLayout`], [`KernelError::OtherLimit`] and
    /// [`KernelError::OtherNamespace`] when the pins cannot be adopted; nothing has been changed
    /// then. Otherwise the kernel's error: objects pinned by then stay and are adopted the next time.
    pub fn open(pins: &Path, cgroup: &Path, limits: &Limits) -> Result<Self, KernelError> {
        Self::open_with(pins, cgroup, limits, |pins, sizes| {
            Ok(Arriving::open(pins, sizes)?)
        })
    }

    /// Like [`Admission::open`], but reads tokens at interfaces, as on kernels before 6.6.
    ///
    /// # Errors
    /// Like [`Admission::open`].
    pub fn open_at_interfaces(
        pins: &Path,
        cgroup: &Path,
        limits: &Limits,
    ) -> Result<Self, KernelError> {
        Self::open_with(pins, cgroup, limits, |_, _| Err(Lack::new("not asked for")))
    }

    fn open_with(
        pins: &Path,
        cgroup: &Path,
        limits: &Limits,
        arriving: impl FnOnce(&Pins, &[(&'static str, u32)]) -> Result<Arriving, Lack>,
    ) -> Result<Self, KernelError> {
        let pins = Pins::lock(pins)?;
        pins.require_layout(LAYOUT_VERSION)?;
        let sizes = [
            ("sessions", limits.sessions),
            ("certificates", limits.sessions),
            ("admissions", limits.admissions),
            ("listeners", limits.listeners),
            ("tokens", limits.tokens),
            ("outstanding", limits.listeners),
        ];
        let object = CODE.open()?.limit(&sizes)?.pin(&pins, None)?.load()?;
        pins.note_layout(&object, LAYOUT_VERSION)?;
        object.keep_at_network("choose_queue", &pins)?;
        object.keep_at_cgroup("follow", &pins, cgroup)?;
        let read = |bytes: &[u8]| ConnectionTuple::decode(bytes.first_chunk::<36>()?).ok();
        Ok(Self {
            services: object.table("services")?,
            listeners: object.table("listeners")?,
            admissions: object.table("admissions")?,
            sessions: object.table("sessions")?,
            certificates: object.table("certificates")?,
            counters: object.counters("counters")?,
            tokens: Tokens::adopt(object.table("tokens")?, limits.tokens)?,
            client_addresses: object.table("client_addresses")?,
            outstanding: object.table("outstanding")?,
            remove: object.program("remove")?,
            check_token: object.program("check_token")?,
            arriving: arriving(&pins, &sizes),
            untracked: object.ring("untracked", "read untracked connections", read)?,
            last_number: AtomicU64::new(0),
            pins,
        })
    }

    /// Puts these ports (port, id of the service) under admission, and no others. Adds first, then
    /// removes, so that a remaining port is never without admission.
    ///
    /// # Errors
    /// The kernel's error; no port has been released unless all new ones are under admission.
    pub fn set_services(&self, services: &[(u16, u32)]) -> Result<(), KernelError> {
        let wanted = services
            .iter()
            .map(|(port, service)| (u32::from(*port), *service));
        self.services.assign(&wanted.collect())
    }

    /// Makes `listener` the queue of the user's connections to the service, and replaces an earlier one.
    /// The queue is in force as long as a process holds the listener.
    ///
    /// # Errors
    /// [`KernelError::Full`]; `EOPNOTSUPP` when this is not a listening TCP socket.
    pub fn add_listener(
        &self,
        service: u32,
        uid: u32,
        listener: BorrowedFd<'_>,
    ) -> Result<(), KernelError> {
        // A socket map takes a descriptor and returns a cookie.
        let descriptor = key(listener).into();
        self.listeners.set(&Target { service, uid }, &descriptor)
    }

    /// Removes the user's queue: SYNs are refused from then on, and connections waiting in the queue stay
    /// there. Does nothing if there is none.
    pub fn remove_listener(&self, service: u32, uid: u32) -> Result<(), KernelError> {
        self.listeners.remove(&Target { service, uid }).map(drop)
    }

    /// Admits the connection once.
    ///
    /// # Errors
    /// See [`AnnounceError`]; nothing has been announced then.
    pub fn announce(
        &self,
        connection: &ConnectionTuple,
        announced: &Announced,
    ) -> Result<(), AnnounceError> {
        let key = connection.encode();
        if ConnectionTuple::decode(&key).is_err() {
            // An entry with such an endpoint could not be read back.
            return Err(AnnounceError::NoConnection(*connection));
        }
        let now = boot_time();
        let entry = Entry {
            mark: layout::announced_mark(self.next_number(now)),
            expires_ns: after(now, announced.lifetime),
            established_ns: 0,
            target: Target {
                service: announced.service,
                uid: announced.uid,
            },
            session: *announced.session.as_bytes(),
            syn: 0,
            by_token: 0,
            reserved: 0,
        };
        let mut insertion = self.admissions.insert(&key, &entry)?;
        if insertion == Insertion::Exists && self.remove(&key, EXPIRE, None)? == Removed::Gone {
            insertion = self.admissions.insert(&key, &entry)?;
        }
        match insertion {
            Insertion::Done => Ok(()),
            Insertion::Exists => Err(AnnounceError::AlreadyAnnounced),
            Insertion::Full => Err(AnnounceError::Full),
        }
    }

    /// A number that no earlier announcement has, not even one of an earlier keeper: the time since boot
    /// in nanoseconds, or one more than the last. Its 56 bits last two years.
    fn next_number(&self, now: u64) -> u64 {
        let next = |last: u64| now.max(last + 1);
        let order = Ordering::Relaxed;
        let last = self
            .last_number
            .fetch_update(order, order, |last| Some(next(last)));
        // The closure never gives up.
        last.map_or_else(next, next)
    }

    /// Withdraws an announcement of `session`. Does nothing if the connection is established, not
    /// announced, or announced by another session.
    ///
    /// # Errors
    /// The kernel's error; the announcement then stands until it expires.
    pub fn withdraw(
        &self,
        connection: &ConnectionTuple,
        session: &SessionId,
    ) -> Result<(), KernelError> {
        self.remove(&connection.encode(), WITHDRAW, Some(session))
            .map(drop)
    }

    /// Removes the announcement of a connection, of any session, unless it is established: an
    /// established one stays until it is closed, so that revocation still sees it. A handshake under way
    /// can still complete; [`Admission::drain_untracked`] then reports the connection.
    pub fn forget(&self, connection: &ConnectionTuple) -> Result<(), KernelError> {
        self.remove(&connection.encode(), FORGET, None).map(drop)
    }

    fn remove(
        &self,
        key: &[u8; 36],
        reason: u32,
        session: Option<&SessionId>,
    ) -> Result<Removed, KernelError> {
        let mut removal = Removal {
            connection: *key,
            reason,
            session: session.map_or([0; 16], |session| *session.as_bytes()),
        };
        match run(self.remove.as_fd(), "change an admission", &mut removal)? {
            0 => Ok(Removed::Not),
            1 => Ok(Removed::Gone),
            2 => Ok(Removed::Changed),
            _ => Err(KernelError::UnreadableEntry("admissions")),
        }
    }

    /// The entry of one connection, if there is one.
    ///
    /// # Errors
    /// The kernel's error, or [`KernelError::UnreadableEntry`].
    pub fn admission(
        &self,
        connection: &ConnectionTuple,
    ) -> Result<Option<AdmissionRow>, KernelError> {
        let key = connection.encode();
        match self.admissions.get(&key)? {
            Some(entry) => entry.row(&key, boot_time()),
            None => Ok(None),
        }
    }

    /// All entries of the table of connections.
    ///
    /// # Errors
    /// The kernel's error, or [`KernelError::UnreadableEntry`].
    pub fn admissions(&self) -> Result<Vec<AdmissionRow>, KernelError> {
        let mut rows = Vec::new();
        let entries = self.admissions.entries()?;
        let now = boot_time();
        for (key, entry) in entries {
            rows.extend(entry.row(&key, now)?);
        }
        Ok(rows)
    }

    /// Removes the entries that cannot be read, so that one of them does not hide all others, and returns
    /// them. An entry that cannot be removed is left out of the result, and [`Self::admissions`] continues to
    /// fail.
    ///
    /// # Errors
    /// The kernel's error; nothing is removed then.
    pub fn remove_unreadable_admissions(&self) -> Result<Vec<UnreadableRow>, KernelError> {
        let mut removed = Vec::new();
        let now = boot_time();
        for (key, entry) in self.admissions.entries()? {
            if entry.row(&key, now).is_err() && self.admissions.remove(&key).is_ok() {
                removed.push(UnreadableRow {
                    connection: ConnectionTuple::decode(&key).ok(),
                    session: SessionId::from_bytes(entry.session),
                });
            }
        }
        Ok(removed)
    }

    /// Removes expired announcements, and handshakes (also withdrawn ones) 70 s after that, when the
    /// kernel has abandoned them. Returns the number of removed entries.
    pub fn sweep(&self) -> Result<usize, KernelError> {
        let now = boot_time();
        let mut removed = 0;
        for (key, entry) in self.admissions.entries()? {
            // The program decides; this check spares it the entries that are not yet expired.
            if entry.expires_ns <= now && self.remove(&key, EXPIRE, None)? == Removed::Gone {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Stores a new session of a plain key.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn insert_session(
        &self,
        session: &SessionId,
        record: &SessionRecord,
    ) -> Result<(), SessionError> {
        match self.sessions.insert(session.as_bytes(), &record.into())? {
            Insertion::Done => Ok(()),
            Insertion::Exists => Err(SessionError::Exists),
            Insertion::Full => Err(SessionError::Full),
        }
    }

    /// Stores a new session of a certified key. If the caller dies halfway, a session without its
    /// certificate remains, which must not be used.
    ///
    /// # Errors
    /// See [`SessionError`]; nothing is then stored.
    pub fn insert_certified_session(
        &self,
        session: &SessionId,
        record: &SessionRecord,
        certificate: &Certified,
    ) -> Result<(), SessionError> {
        let record = SessionRecord {
            certified: true,
            ..record.clone()
        };
        self.insert_session(session, &record)?;
        // The session is new: an existing entry under its id is a left-over of a session that is gone.
        let put = self
            .certificates
            .put(session.as_bytes(), &certificate.into());
        let failed = match put {
            Ok(Insertion::Done | Insertion::Exists) => return Ok(()),
            Ok(Insertion::Full) => SessionError::Full,
            Err(error) => error.into(),
        };
        self.remove_session(session)?;
        Err(failed)
    }

    /// The certificate that makes a session's key the user's.
    ///
    /// # Errors
    /// The kernel's error, or [`KernelError::UnreadableEntry`].
    pub fn certificate(&self, session: &SessionId) -> Result<Option<Certified>, KernelError> {
        self.certificates
            .get(session.as_bytes())?
            .map(|stored| (&stored).try_into())
            .transpose()
    }

    /// The record of a session, if there is one.
    ///
    /// # Errors
    /// The kernel's error, or [`KernelError::UnreadableEntry`].
    pub fn session(&self, session: &SessionId) -> Result<Option<SessionRecord>, KernelError> {
        self.sessions
            .get(session.as_bytes())?
            .map(|stored| (&stored).try_into())
            .transpose()
    }

    /// Replaces the record of an existing session.
    ///
    /// # Errors
    /// `ENOENT` if there is none, and other errors of the kernel.
    pub fn update_session(
        &self,
        session: &SessionId,
        record: &SessionRecord,
    ) -> Result<(), KernelError> {
        self.sessions.replace(session.as_bytes(), &record.into())
    }

    /// Removes a session. Does nothing if there is none.
    pub fn remove_session(&self, session: &SessionId) -> Result<(), KernelError> {
        self.sessions.remove(session.as_bytes())?;
        self.certificates.remove(session.as_bytes()).map(drop)
    }

    /// All sessions.
    ///
    /// # Errors
    /// The kernel's error, or [`KernelError::UnreadableEntry`].
    pub fn sessions(&self) -> Result<Vec<(SessionId, SessionRecord)>, KernelError> {
        self.sessions
            .entries()?
            .iter()
            .map(|(id, stored)| Ok((SessionId::from_bytes(*id), stored.try_into()?)))
            .collect()
    }

    /// Removes the sessions whose records cannot be read, and returns them. One that cannot be removed is
    /// left out of the result, and [`Self::sessions`] continues to fail.
    ///
    /// # Errors
    /// The kernel's error; nothing is removed then.
    pub fn remove_unreadable_sessions(&self) -> Result<Vec<SessionId>, KernelError> {
        let mut removed = Vec::new();
        for (id, stored) in self.sessions.entries()? {
            if SessionRecord::try_from(&stored).is_err() {
                let session = SessionId::from_bytes(id);
                if self.remove_session(&session).is_ok() {
                    removed.push(session);
                }
            }
        }
        Ok(removed)
    }

    /// The programs' counters.
    pub fn counters(&self) -> Result<Counters, KernelError> {
        self.counters.read()
    }

    /// The ids of programs that no pin names, for the guard.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unpinned_programs(&self) -> Result<Vec<u32>, KernelError> {
        let programs = [&self.remove, &self.check_token].map(program_id);
        let arriving = self.arriving.as_ref().ok().map(Arriving::program);
        programs.into_iter().chain(arriving).collect()
    }

    /// The reason that tokens are read at interfaces, where packets under IPsec and fragments cannot be
    /// read. None: they are read at LOCAL_IN, in packets of every form and on every interface.
    #[must_use]
    pub fn reads_at_interfaces(&self) -> Option<&Lack> {
        self.arriving.as_ref().err()
    }

    /// Ensures that the tokens of packets that arrive in the caller's network namespace are read. If
    /// they are read at interfaces, attaches the filter to all present interfaces; see
    /// [`Filter::attach`]. Connections through an interface without the filter must be announced.
    ///
    /// # Errors
    /// The kernel's error: then it is unknown which interfaces have the filter.
    pub fn attach_tokens(&self) -> Result<Vec<Unattached>, KernelError> {
        match &self.arriving {
            Ok(arriving) => arriving.attach(&self.pins).map(|()| Vec::new()),
            Err(_) => FILTER.attach(&self.check_token),
        }
    }

    /// A descriptor that is readable (epoll, poll) while [`Admission::drain_untracked`] has reports.
    ///
    /// # Errors
    /// When it cannot be duplicated.
    pub fn untracked(&self) -> Result<OwnedFd, KernelError> {
        self.untracked.descriptor()
    }

    /// Connections that reached a service unannounced since the last call. The caller must destroy them.
    /// The ring holds about a thousand; more are only counted.
    pub fn drain_untracked(&self) -> Result<Vec<ConnectionTuple>, KernelError> {
        let mut all = Vec::new();
        loop {
            let batch = self.untracked.take()?;
            all.extend(batch.entries);
            if !batch.more {
                return Ok(all);
            }
        }
    }
}

/// The result of an operation on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    Not,
    Gone,
    Changed,
}
