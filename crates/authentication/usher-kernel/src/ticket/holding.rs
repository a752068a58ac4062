//! Plain connections: the destinations at which a plain connect(2) of any program is authenticated, the
//! held connections, and those that may begin (bpf/authentication/ticket/holding.h).

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use usher_base::ConnectionTuple;
use usher_bpf::{Batch, Mirrored, Object, Plain, Ring, Table};

use super::gates::Gates;
use super::listing::ProgramId;
use super::syn::{Syn, SynSender};
use super::types::Attempt;
use super::types::TicketError;
use crate::KernelError;
use crate::shared::key;
use crate::shared::ticket::{self, Destination, EVENT_HELD, EVENT_OVER, EVENT_REFUSED, Hold};

/// A report about a plain connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The connection's attempt.
    pub attempt: Attempt,
    /// The connection's endpoints.
    pub connection: ConnectionTuple,
    /// The real uid of the connecting process, in the initial user namespace.
    pub uid: u32,
    /// The number of a ticket whose token did not pass.
    pub ticket: Option<u32>,
    /// The process, in the initial pid namespace; it may have ended since.
    pub pid: u32,
    /// The process's own name: bytes of its choice.
    pub command: String,
    /// The program, if programs are listed. None: its file is no longer at any path.
    pub program: Option<ProgramId>,
    /// The event.
    pub event: Event,
}

/// See [`Report`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The connection's SYN is held: now, or once more. Not every copy is reported.
    Held(Option<Syn>),
    /// The connection was held, and is established or abandoned.
    Over,
    /// A RST answered the connection's token, and the program has seen it.
    Refused,
}

/// The tables of the programs that hold.
#[derive(Debug)]
pub struct Holding {
    plain: Mutex<Mirrored<Destination, u32>>,
    holds: Table<u32, Hold>,
    gates: Gates,
    reports: Ring<Report>,
    sender: Result<SynSender, KernelError>,
}

impl Holding {
    pub(super) fn open(
        object: &Object,
        gates: Gates,
        class_bits: u32,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            plain: Mutex::new(Mirrored::new(object.table("plain")?)),
            holds: object.table("holds")?,
            gates,
            reports: object.ring("reports", "read reports of plain connections", read_report)?,
            // Keeps no descriptor of this table; its entries stay as they are.
            sender: SynSender::open(&object.table("senders")?, class_bits),
        })
    }

    /// Authenticates plain connections to these addresses and to no others, from the next connect(2) on:
    /// those of the programs on the list with this number, or of all programs if there is no number. For an
    /// address with a list, only listed programs draw tokens.
    ///
    /// # Errors
    /// [`TicketError::Full`] when there is no room for all of them, or the kernel's error; some are then in
    /// force, and of the former ones only those that are among them.
    pub fn set_destinations(
        &self,
        destinations: impl IntoIterator<Item = (SocketAddr, Option<NonZeroU32>)>,
    ) -> Result<(), TicketError> {
        let number = |list: Option<NonZeroU32>| list.map_or(0, NonZeroU32::get);
        let wanted = destinations.into_iter();
        let wanted = wanted
            .map(|(server, list)| (server.into(), number(list)))
            .collect();
        let mut plain = self.plain.lock();
        plain.retain(&wanted)?;
        Ok(plain.enter(&wanted)?)
    }

    /// Exempts this socket's connections from being held: they are announced before they begin.
    pub fn exempt(&self, socket: BorrowedFd<'_>) -> Result<(), KernelError> {
        let exempt = Hold {
            exempt: 1,
            ..Hold::zeroed()
        };
        self.holds.set(&key(socket), &exempt)
    }

    /// The gates of announced connections, and of those under decision.
    pub fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The sender of held SYNs. It needs CAP_NET_RAW when the programs are loaded.
    ///
    /// # Errors
    /// The reason that there is none: the kernel then sends held SYNs again.
    pub fn sender(&self) -> Result<&SynSender, &KernelError> {
        self.sender.as_ref()
    }

    /// A descriptor that is readable (epoll, poll) while [`Holding::reports`] has reports.
    ///
    /// # Errors
    /// When it cannot be duplicated.
    pub fn descriptor(&self) -> Result<OwnedFd, KernelError> {
        self.reports.descriptor()
    }

    /// The reports since the last call, up to 1,024.
    pub fn reports(&self) -> Result<Batch<Report>, KernelError> {
        self.reports.take()
    }
}

/// Reads a report; none if it is malformed.
fn read_report(bytes: &[u8]) -> Option<Report> {
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
                Event::Held(Syn::complete(syn, &connection, report.mark))
            }
            EVENT_OVER => Event::Over,
            EVENT_REFUSED => Event::Refused,
            _ => return None,
        },
    })
}

/// The bytes up to the first zero byte.
fn command_of(bytes: &[u8]) -> String {
    let command = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(command).into_owned()
}
