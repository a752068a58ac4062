//! Plain connections: where a plain connect(2) of any program is authenticated, what is held
//! meanwhile, and what may begin (bpf/ticket/holding.h).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use usher_bpf::{Batch, Object, Plain, Ring, Table};
use usher_proto::ConnectionTuple;

use super::guards::{self, Guards};
use super::listing::ProgramId;
use super::syn::{Syn, SynSender};
use super::told;
use super::types::TicketError;
use crate::KernelError;
use crate::shared::ticket::{self, Destination, EVENT_HELD, EVENT_OVER, EVENT_REFUSED, Hold};

/// One connect(2): of which socket, and when, which tells it from others of the same socket. Never
/// the same twice between two boots. See also [`Attempt::of_socket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The socket's cookie.
    pub cookie: u64,
    /// Boot time in nanoseconds.
    pub begun_ns: u64,
}

impl Attempt {
    /// A connection that is announced before it begins: whichever connect(2) of the socket.
    ///
    /// # Errors
    /// What the kernel says of what is no socket.
    pub fn of_socket(socket: BorrowedFd<'_>) -> Result<Self, KernelError> {
        guards::attempt_of(socket)
    }
}

impl From<Attempt> for ticket::Attempt {
    fn from(Attempt { cookie, begun_ns }: Attempt) -> Self {
        Self { cookie, begun_ns }
    }
}

/// What became of a plain connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which it is.
    pub attempt: Attempt,
    /// Its ends.
    pub connection: ConnectionTuple,
    /// The real uid of the process that connects, in the initial user namespace.
    pub uid: u32,
    /// The number of a ticket whose token did not pass.
    pub ticket: Option<u32>,
    /// The process, in the initial pid namespace; may have ended since.
    pub pid: u32,
    /// What the process calls itself: bytes of its own choice.
    pub command: String,
    /// Where programs are listed, which it is. None: one whose file is at no path any more.
    pub program: Option<ProgramId>,
    /// What happened.
    pub event: Event,
}

/// See [`Report`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Its SYN is held: now, or once more. Not all of one are told.
    Held(Option<Syn>),
    /// It was held, and is established or given up.
    Over,
    /// Its token was answered by a RST, which the program has been told.
    Refused,
}

/// The tables of the programs that hold.
pub struct Holding {
    plain: Table<Destination, u32>,
    /// What is in `plain`: listing a table takes a system call that a confined process has not.
    destinations: Mutex<HashMap<SocketAddr, u32>>,
    holds: Table<u32, Hold>,
    guards: Guards,
    reports: Ring<Report>,
    sender: Result<SynSender, KernelError>,
}

impl std::fmt::Debug for Holding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Holding").finish_non_exhaustive()
    }
}

impl Holding {
    pub(super) fn open(object: &Object, guards: Guards) -> Result<Self, KernelError> {
        Ok(Self {
            plain: object.table("plain")?,
            destinations: Mutex::default(),
            holds: object.table("holds")?,
            guards,
            reports: object.ring("reports", "reading of plain connections", read)?,
            // The table is not kept: what is entered stays as it is.
            sender: SynSender::open(&object.table("senders")?),
        })
    }

    /// Has plain connections authenticated to these addresses and to no others, from the next
    /// connect(2) on: of the programs of the list with this number, or of all where there is none.
    /// Tokens for an address with a list are drawn by its programs only.
    ///
    /// # Errors
    /// [`TicketError::Full`] when there is no room for all of them, or what the kernel says; some
    /// are in force then, and no former one that is not among them.
    pub fn set_destinations(
        &self,
        destinations: impl IntoIterator<Item = (SocketAddr, Option<NonZeroU32>)>,
    ) -> Result<(), TicketError> {
        let number = |list: Option<NonZeroU32>| list.map_or(0, NonZeroU32::get);
        let wanted = destinations.into_iter();
        let wanted: HashMap<SocketAddr, u32> = wanted
            .map(|(server, list)| (server, number(list)))
            .collect();
        let present = self.destinations.lock();
        let mut present = present.unwrap_or_else(PoisonError::into_inner);
        let former = present.keys().filter(|server| !wanted.contains_key(server));
        for former in former.copied().collect::<Vec<_>>() {
            self.plain.remove(&former.into())?;
            present.remove(&former);
        }
        for (destination, list) in wanted {
            // Not written again: while an element is replaced, a connect(2) that has just found it
            // may read another destination's in its place.
            if present.get(&destination) == Some(&list) {
                continue;
            }
            told(self.plain.put(&destination.into(), &list)?)?;
            present.insert(destination, list);
        }
        Ok(())
    }

    /// Has connections of this socket never held: it is announced before it connects.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn exempt(&self, socket: BorrowedFd<'_>) -> Result<(), KernelError> {
        let descriptor = u32::try_from(socket.as_raw_fd()).unwrap_or(u32::MAX);
        let exempt = Hold {
            exempt: 1,
            ..Hold::zeroed()
        };
        self.holds.set(&descriptor, &exempt)
    }

    /// The guards of announced connections, and of those that are decided about.
    pub fn guards(&self) -> &Guards {
        &self.guards
    }

    /// What sends held SYNs. It takes CAP_NET_RAW when the programs are loaded.
    ///
    /// # Errors
    /// Why there is none: held SYNs are then left to the kernel.
    pub fn sender(&self) -> Result<&SynSender, &KernelError> {
        self.sender.as_ref()
    }

    /// A descriptor that is readable (epoll, poll) while [`Holding::reports`] has something.
    ///
    /// # Errors
    /// When it cannot be duplicated.
    pub fn descriptor(&self) -> Result<OwnedFd, KernelError> {
        self.reports.descriptor()
    }

    /// What happened since the last call, up to 1,024 reports.
    ///
    /// # Errors
    /// What libbpf says.
    pub fn reports(&self) -> Result<Batch<Report>, KernelError> {
        self.reports.take()
    }
}

/// None for what is no report.
fn read(bytes: &[u8]) -> Option<Report> {
    let report = ticket::Report::read(bytes)?;
    let connection = ConnectionTuple::decode(&report.connection).ok()?;
    Some(Report {
        attempt: Attempt {
            cookie: report.attempt.cookie,
            begun_ns: report.attempt.begun_ns,
        },
        connection,
        uid: report.uid,
        ticket: (report.ticket != 0).then_some(report.ticket),
        pid: report.pid,
        command: command_of(&report.command),
        program: ProgramId::new(report.program),
        event: match report.event.into() {
            EVENT_HELD => {
                let syn = report.syn.get(..report.size.into())?;
                Event::Held(Syn::complete(syn, &connection))
            }
            EVENT_OVER => Event::Over,
            EVENT_REFUSED => Event::Refused,
            _ => return None,
        },
    })
}

/// Up to the first zero byte.
fn command_of(bytes: &[u8]) -> String {
    let command = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(command).into_owned()
}
