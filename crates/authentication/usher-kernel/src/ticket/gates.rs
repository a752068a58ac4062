//! Gates: for two endpoints, the only socket whose connection may begin
//! (bpf/authentication/ticket/gate.bpf.c).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use usher_base::ConnectionTuple;
use usher_bpf::{Code, Object, Objects, Pins, Table, code};
use usher_proto::SessionId;

use super::types::Attempt;
use super::types::TicketError;
use crate::clock::{after, boot_time};
use crate::shared::admission::Connection;
use crate::shared::key;
use crate::shared::ticket::{self, TICKET_VERSION};
use crate::{KernelError, cgroup};

/// bpf/authentication/ticket/gate.
pub(crate) static CODE: Code = code!("usher_gate", "gate");

const PROGRAM: &str = "gate_syn";
/// Tables that the gate program shares with the programs that hold SYNs.
pub(super) const SHARED: [&str; 2] = ["gates", "holds"];

/// Tables that outlive the signer. The link's name ends with the number of its cgroup.
const PINNED: [&str; 3] = ["gates", "holds", "layout"];

/// The data of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// The only attempt that may begin a connection with these endpoints.
    pub attempt: Attempt,
    /// Whether that attempt may begin now.
    pub released: bool,
    /// The time for which the gate stands unless it is removed.
    pub lifetime: Duration,
    /// The session that announces the endpoints, if known.
    pub session: Option<SessionId>,
}

/// A gate that an earlier signer has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftGate {
    /// The gate's endpoints.
    pub connection: ConnectionTuple,
    /// The session that announced the endpoints, if known.
    pub session: Option<SessionId>,
    /// The time for which the gate still stands.
    pub lifetime: Duration,
}

/// The gates in force.
#[derive(Debug)]
pub struct Gates {
    table: Table<Connection, ticket::Gate>,
    kept_back: usher_bpf::Counters<u64>,
    left: Vec<LeftGate>,
    lasting: Result<(), KernelError>,
    object: Object,
    pins: Option<Pins>,
}

impl Gates {
    /// The gates that an earlier process had left at the opening.
    pub fn left(&self) -> &[LeftGate] {
        &self.left
    }

    /// Whether gates outlive this process.
    ///
    /// # Errors
    /// The reason why they do not.
    pub fn lasting(&self) -> Result<(), &KernelError> {
        self.lasting.as_ref().copied()
    }

    /// Adds the program, its tables and its pins.
    pub(super) fn collect(&self, objects: &mut Objects) -> Result<(), KernelError> {
        self.object.collect(objects)?;
        match &self.pins {
            Some(pins) => objects.collect(pins.folder()),
            None => Ok(()),
        }
    }

    /// From now on, a SYN with these endpoints leaves only as the gate permits. Replaces a former
    /// gate of the same endpoints.
    ///
    /// # Errors
    /// [`TicketError::Full`], or the kernel's error.
    pub fn put(&self, connection: &ConnectionTuple, gate: &Gate) -> Result<(), TicketError> {
        let gate = ticket::Gate::new(gate, boot_time());
        Ok(self.table.set(&connection.encode(), &gate)?)
    }

    /// Removes the gate of these endpoints. Returns false if they had none.
    pub fn remove(&self, connection: &ConnectionTuple) -> Result<bool, KernelError> {
        self.table.remove(&connection.encode())
    }

    /// Whether a gate stands for these endpoints.
    pub fn stands(&self, connection: &ConnectionTuple) -> Result<bool, KernelError> {
        let gate = self.table.get(&connection.encode())?;
        Ok(gate.is_some_and(|gate| gate.until_ns > boot_time()))
    }

    /// SYNs that were kept back because another connection had their endpoints.
    pub(super) fn kept_back(&self) -> Result<u64, KernelError> {
        self.kept_back.read()
    }
}

/// The program, loaded but not attached, and its tables, which the programs that hold share.
pub(super) struct Loaded {
    object: Object,
    pins: Option<Pins>,
    lasting: Result<(), KernelError>,
}

impl Loaded {
    /// Adopts the pins in the folder `pins`, or makes them. If this fails, or without a folder,
    /// gates end with this process.
    pub(super) fn new(pins: Option<&Path>, limit: u32) -> Result<Self, KernelError> {
        let lasting = match pins {
            Some(pins) => Self::pinned(pins, limit),
            None => Err(KernelError::MissingPart("a folder for pins")),
        };
        match lasting {
            Ok(loaded) => Ok(loaded),
            // In use by another signer: the caller must decide which one is meant.
            Err(error @ KernelError::InUse(_)) => Err(error),
            Err(error) => Ok(Self {
                object: CODE.open()?.limit(&[("gates", limit)])?.load()?,
                pins: None,
                lasting: Err(error),
            }),
        }
    }

    fn pinned(folder: &Path, limit: u32) -> Result<Self, KernelError> {
        let pins = Pins::lock(folder)?;
        let load = || -> Result<Object, KernelError> {
            pins.require_layout(TICKET_VERSION)?;
            let code = CODE.open()?.limit(&[("gates", limit)])?;
            let object = code.pin(&pins, Some(&PINNED))?.load()?;
            pins.note_layout(&object, TICKET_VERSION)?;
            Ok(object)
        };
        let object = match load() {
            Ok(object) => object,
            // The table is one of another version or limit, so its contents are unusable.
            Err(error) => {
                tracing::warn!(%error, "cannot take over the gates of an earlier signer: they are \
                    removed");
                pins.remove()?;
                load()?
            }
        };
        Ok(Self {
            object,
            pins: Some(pins),
            lasting: Ok(()),
        })
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// Lets `hold` decide on SYNs without a gate, and attaches to the cgroup `group`. The programs
    /// stay attached as long as the other returned values are open.
    pub(super) fn attach(
        self,
        group: &Path,
        hold: &OwnedFd,
    ) -> Result<(Gates, Vec<OwnedFd>), KernelError> {
        let Self {
            object,
            pins,
            lasting,
        } = self;
        // The kernel takes the descriptor of a program.
        object.table("holding")?.set(&0_u32, &key(hold.as_fd()))?;
        let mut kept = vec![object.descriptor("holding")?];
        match &pins {
            Some(pins) => object.keep_at_cgroup(PROGRAM, pins, group)?,
            None => kept.extend(object.attach_to_cgroup(&[PROGRAM], group)?),
        }
        // The caller, in its own group, sends held SYNs in place of their sockets.
        let own = cgroup::own()?;
        if !own.starts_with(group) {
            kept.extend(object.attach_to_cgroup(&[PROGRAM], &own)?);
        }
        let table = object.table("gates")?;
        let gates = Gates {
            left: left(&table)?,
            table,
            kept_back: object.counters("kept_back")?,
            lasting,
            object,
            pins,
        };
        Ok((gates, kept))
    }
}

/// The standing gates; removes expired ones.
fn left(table: &Table<Connection, ticket::Gate>) -> Result<Vec<LeftGate>, KernelError> {
    let now = boot_time();
    let mut left = Vec::new();
    for (ends, gate) in table.entries()? {
        let connection = ConnectionTuple::decode(&ends);
        match connection {
            Ok(connection) if gate.until_ns > now => left.push(LeftGate {
                connection,
                session: gate.session(),
                lifetime: Duration::from_nanos(gate.until_ns - now),
            }),
            _ => drop(table.remove(&ends)?),
        }
    }
    Ok(left)
}

impl ticket::Gate {
    fn new(gate: &Gate, now: u64) -> Self {
        Self {
            attempt: gate.attempt.into(),
            until_ns: after(now, gate.lifetime),
            released: gate.released.into(),
            session: gate.session.map_or([0; 16], |session| *session.as_bytes()),
        }
    }

    fn session(&self) -> Option<SessionId> {
        (self.session != [0; 16]).then(|| SessionId::from_bytes(self.session))
    }
}
