//! Plain connections: where a plain connect(2) of any program is authenticated, what is held
//! meanwhile, and what may begin (bpf/ticket/holding.h).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use usher_proto::ConnectionTuple;

use super::guards::{self, Guards};
use super::layout::{COMMAND_SIZE, Destination, Hold};
use super::listing::ProgramId;
use super::ring::{Batch, Ring};
use super::syn::{Syn, SynSender};
use super::told;
use super::types::TicketError;
use crate::KernelError;
use crate::admission::table::Table;

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
    pub(super) fn new(tables: HoldingTables) -> Result<Self, KernelError> {
        Ok(Self {
            plain: Table::new("plain", tables.plain),
            destinations: Mutex::default(),
            holds: Table::new("holds", tables.holds),
            guards: tables.guards,
            reports: Ring::open("reading of plain connections", tables.reports, read)?,
            sender: SynSender::open(&Table::new("senders", tables.senders)),
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
        self.holds.set(&descriptor, &Hold::EXEMPT)
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

/// What the programs' loader gives.
pub(super) struct HoldingTables {
    pub plain: OwnedFd,
    pub holds: OwnedFd,
    pub guards: Guards,
    pub reports: libbpf_rs::MapHandle,
    pub senders: OwnedFd,
}

/// struct usher_report; None for what is none.
fn read(bytes: &[u8]) -> Option<Report> {
    const HELD: u16 = 1;
    const OVER: u16 = 2;
    const REFUSED: u16 = 3;
    let (cookie, rest) = bytes.split_first_chunk()?;
    let (begun_ns, rest) = rest.split_first_chunk()?;
    let (program, rest) = rest.split_first_chunk()?;
    let (connection, rest) = rest.split_first_chunk()?;
    let (uid, rest) = rest.split_first_chunk()?;
    let (ticket, rest) = rest.split_first_chunk()?;
    let (pid, rest) = rest.split_first_chunk()?;
    let (command, rest) = rest.split_first_chunk::<COMMAND_SIZE>()?;
    let (event, rest) = rest.split_first_chunk()?;
    let (size, syn) = rest.split_first_chunk()?;
    let ticket = u32::from_ne_bytes(*ticket);
    let connection = ConnectionTuple::decode(connection).ok()?;
    Some(Report {
        attempt: Attempt {
            cookie: u64::from_ne_bytes(*cookie),
            begun_ns: u64::from_ne_bytes(*begun_ns),
        },
        connection,
        uid: u32::from_ne_bytes(*uid),
        ticket: (ticket != 0).then_some(ticket),
        pid: u32::from_ne_bytes(*pid),
        command: command_of(command),
        program: ProgramId::new(u64::from_ne_bytes(*program)),
        event: match u16::from_ne_bytes(*event) {
            HELD => {
                let syn = syn.get(..u16::from_ne_bytes(*size).into())?;
                Event::Held(Syn::complete(syn, &connection))
            }
            OVER => Event::Over,
            REFUSED => Event::Refused,
            _ => return None,
        },
    })
}

/// Up to the first zero byte.
fn command_of(bytes: &[u8]) -> String {
    let command = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(command).into_owned()
}
