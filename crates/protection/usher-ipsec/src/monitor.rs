//! The kernel programs of bpf/ipsec, and the tables by which they decide.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use ipnet::IpNet;
use usher_base::address_bytes;
use usher_bpf::executables::{self, Identifier, ProgramId};
use usher_bpf::{Code, Insertion, KernelError, Object, Pins, Plain, Table, code, run_on_packet};
use usher_protection::{Class, Level};

use crate::error::IpsecError;
use crate::live::{LiveSocket, Row};
use crate::marks::MarkMask;
use crate::plan::{Application, Line};
pub use crate::shared::IpsecCounters as Counters;
use crate::shared::{
    Held, IPSEC_LAYOUT, IpsecState, PATTERN_LOCAL, PATTERN_REMOTE, POLICY_IPV4, POLICY_IPV6,
    POLICY_ITEM, POLICY_PLACES, POLICY_PROGRAM, PolicyEntry, PolicyKey,
};

/// bpf/ipsec.
static CODE: Code = code!("usher_ipsec", "monitor");

/// Not attached: run when sockets are listed.
static LIVE: Code = code!("usher_live", "live");
/// Its program.
const LISTS: &str = "lists";
/// The tables that both have.
const SHARED: [&str; 5] = ["policies", "state", "counters", "sockets", "program_keys"];

/// In the order of attaching: what drops packets comes after what marks sockets.
const PROGRAMS: [&str; 9] = [
    "made",
    "connects4",
    "connects6",
    "sends4",
    "sends6",
    "keeps",
    "changes",
    "arrives",
    "leaves",
];

/// The tables that outlive the process, with the programs.
const PINNED: [&str; 7] = [
    "layout",
    "policies",
    "state",
    "held",
    "counters",
    "sockets",
    "program_keys",
];

/// The bits of a key's `kind`, `generation` and `scope`.
const SCOPE_BITS: u32 = 3 * u32::BITS;

/// The monitor: loaded, attached and filled.
///
/// Dropping it ends it, unless it was opened with pins: then everything stays in force.
pub struct Monitor {
    policies: Table<u32, u32>,
    state: Table<u32, IpsecState>,
    held: Table<Held, u32>,
    counters: usher_bpf::Counters<Counters>,
    decide: OwnedFd,
    identifier: Identifier,
    mask: MarkMask,
    pins: Option<Pins>,
    /// Or the reason that this kernel does not accept it.
    live: Result<Object, KernelError>,
    _links: Vec<OwnedFd>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Monitor").finish_non_exhaustive()
    }
}

impl Monitor {
    /// Tries whether this kernel accepts the programs.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn probe() -> Result<(), String> {
        CODE.probe()
    }

    /// Loads the programs and attaches them to a control group (the path of its folder): they see
    /// the sockets that are made in it and below. Nothing is governed before the first
    /// [`Monitor::fill`]; with pins, what an earlier process filled is still in force.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(cgroup: &Path, pins: Option<&Path>, mask: MarkMask) -> Result<Self, IpsecError> {
        let pins = pins.map(Pins::lock).transpose()?;
        let mut opened = CODE.open()?;
        if let Some(pins) = &pins {
            pins.require_layout(IPSEC_LAYOUT)?;
            opened = opened.pin(pins, Some(&PINNED))?;
        }
        let object = opened.load()?;
        if let Some(pins) = &pins {
            pins.note_layout(&object, IPSEC_LAYOUT)?;
        }
        executables::draw_key(&object)?;
        let state: Table<u32, IpsecState> = object.table("state")?;
        let former = state.get(&0)?.map_or(0, |state| state.generation);
        state.set(&0, &in_force(former, mask))?;
        let links = attach(&object, cgroup, pins.as_ref())?;
        Ok(Self {
            policies: object.table("policies")?,
            state,
            held: object.table("held")?,
            counters: object.counters("counters")?,
            decide: object.program("decide")?,
            identifier: Identifier::of(&object)?,
            mask,
            pins,
            live: load_live(&object),
            _links: links,
        })
    }

    pub(crate) fn identifier(&self) -> &Identifier {
        &self.identifier
    }

    /// Puts a policy in force, at once for all programs: its table is complete and in its place
    /// before the generation goes up. With an error the former policy is in force. `programs` has
    /// the programs of each application.
    pub(crate) fn fill(
        &self,
        applications: &[Application],
        programs: &[Vec<ProgramId>],
    ) -> Result<(), IpsecError> {
        let former = self.state.get(&0)?.map_or(0, |state| state.generation);
        // 0 means that there is no policy; after the largest, which is odd, comes an even one.
        let generation = former.checked_add(1).unwrap_or(2);
        let entries = entries(applications, programs, generation, self.mask);
        let room = u32::try_from(entries.len().max(1)).unwrap_or(u32::MAX);
        let table = Table::of_prefixes("usher_policy", room)?;
        for (key, entry) in &entries {
            table.set(key, entry)?;
        }
        let table = table.freeze()?;
        let place = generation % POLICY_PLACES;
        self.policies
            .set(&place, &table.as_raw_fd().unsigned_abs())?;
        Ok(self.state.set(&0, &in_force(generation, self.mask))?)
    }

    /// Holds a peer to a class: at its optional level, plaintext no longer passes in either
    /// direction.
    ///
    /// # Errors
    /// [`IpsecError::HeldFull`], or the kernel's error; the peer is not held then.
    pub(crate) fn hold(&self, class: Class, peer: IpAddr) -> Result<(), IpsecError> {
        match self.held.put(&held(class, peer), &1)? {
            Insertion::Full => Err(IpsecError::HeldFull(peer)),
            Insertion::Done | Insertion::Exists => Ok(()),
        }
    }

    pub(crate) fn let_go(&self, class: Class, peer: IpAddr) -> Result<bool, IpsecError> {
        Ok(self.held.remove(&held(class, peer))?)
    }

    /// The class number by which the programs treat a leaving TCP packet of an application between
    /// these ports; 0: no policy is in force. The same code decides about sockets and packets.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn decide(
        &self,
        application: u32,
        peer: IpAddr,
        local_port: u16,
        remote_port: u16,
    ) -> Result<u8, IpsecError> {
        let packet = packet(peer, local_port, remote_port);
        let operation = "asking how a packet is treated";
        let class = run_on_packet(self.decide.as_fd(), operation, &packet, application)?;
        Ok(u8::try_from(class).unwrap_or(0))
    }

    /// The sockets of governed programs, once for each process that holds one. Sockets that are
    /// older than the policy, or were made by another program, become the holder's program's: their
    /// packets are treated by its policy from now on.
    ///
    /// A descriptor that is only on its way between processes is not seen.
    ///
    /// # Errors
    /// The kernel's error, also if it does not accept the iterator.
    pub fn adopt(&self) -> Result<Vec<LiveSocket>, IpsecError> {
        let live = self
            .live
            .as_ref()
            .map_err(|error| IpsecError::Unlisted(error.to_string()))?;
        let bytes = live.iterate(LISTS)?;
        let rows = bytes.chunks_exact(size_of::<Row>());
        Ok(rows.filter_map(Row::read).map(LiveSocket::from).collect())
    }

    /// What happened since the tables were made.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counters(&self) -> Result<Counters, IpsecError> {
        Ok(self.counters.read()?)
    }

    /// Ends the monitor, pinned or not: no socket is governed from now on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(self) -> Result<(), IpsecError> {
        if let Some(pins) = self.pins {
            pins.remove()?;
            pins.remove_folder()?;
        }
        Ok(())
    }
}

fn load_live(monitor: &Object) -> Result<Object, KernelError> {
    LIVE.open()?
        .choose(|program, _| Ok::<_, KernelError>(program == LISTS))?
        .share(monitor, &SHARED)?
        .load()
}

fn attach(object: &Object, cgroup: &Path, pins: Option<&Pins>) -> Result<Vec<OwnedFd>, IpsecError> {
    let Some(pins) = pins else {
        return Ok(object.attach_to_cgroup(&PROGRAMS, cgroup)?);
    };
    for program in PROGRAMS {
        object.keep_at_cgroup(program, pins, cgroup)?;
    }
    Ok(Vec::new())
}

fn in_force(generation: u32, mask: MarkMask) -> IpsecState {
    IpsecState {
        generation,
        mask: mask.bits(),
        shift: mask.shift(),
        reserved: 0,
    }
}

fn held(class: Class, peer: IpAddr) -> Held {
    Held {
        class: class.mark(Level::Optional).into(),
        address: address_bytes(peer),
    }
}

fn key(kind: u32, generation: u32, scope: u32, first: &[u8], length: u32) -> PolicyKey {
    let mut bytes = [0; 16];
    bytes[..first.len()].copy_from_slice(first);
    PolicyKey {
        length: SCOPE_BITS + length,
        kind,
        generation,
        scope,
        bytes,
    }
}

fn entry() -> PolicyEntry {
    PolicyEntry {
        number: 0,
        class: 0,
        patterns: 0,
        mark_ipv4: 0,
        mark_ipv6: 0,
    }
}

fn entries(
    applications: &[Application],
    programs: &[Vec<ProgramId>],
    generation: u32,
    mask: MarkMask,
) -> Vec<(PolicyKey, PolicyEntry)> {
    let mut entries = Vec::new();
    let mut lists: BTreeMap<&[Line], u32> = BTreeMap::new();
    for (number, application) in (0_u32..).zip(applications) {
        for program in programs.get(number as usize).into_iter().flatten() {
            let entry = PolicyEntry {
                number,
                mark_ipv4: application.creation_mark(mask, true),
                mark_ipv6: application.creation_mark(mask, false),
                ..entry()
            };
            let id = program.get().to_ne_bytes();
            entries.push((key(POLICY_PROGRAM, 0, 0, &id, u64::BITS), entry));
        }
        for (network, lines) in &application.networks {
            let new = u32::try_from(lists.len()).unwrap_or(u32::MAX);
            let of_network = match lines.as_slice() {
                [only] => PolicyEntry {
                    class: only.class.into(),
                    ..entry()
                },
                lines => {
                    let list = *lists.entry(lines).or_insert(new);
                    if list == new {
                        entries.extend(items(generation, list, lines));
                    }
                    PolicyEntry {
                        number: list,
                        patterns: lines.iter().fold(0, |all, line| all | 1 << pattern(line)),
                        ..entry()
                    }
                }
            };
            let length = u32::from(network.prefix_len());
            let key = match network {
                IpNet::V4(network) => {
                    let address = network.network().octets();
                    key(POLICY_IPV4, generation, number, &address, length)
                }
                IpNet::V6(network) => {
                    let address = network.network().octets();
                    key(POLICY_IPV6, generation, number, &address, length)
                }
            };
            entries.push((key, of_network));
        }
    }
    entries
}

fn pattern(line: &Line) -> u32 {
    let local = line.local.map_or(0, |_| PATTERN_LOCAL);
    local | line.remote.map_or(0, |_| PATTERN_REMOTE)
}

fn items(
    generation: u32,
    list: u32,
    lines: &[Line],
) -> impl Iterator<Item = (PolicyKey, PolicyEntry)> {
    (0..).zip(lines).map(move |(number, line)| {
        let [a, b] = line.local.unwrap_or(0).to_be_bytes();
        let [c, d] = line.remote.unwrap_or(0).to_be_bytes();
        let pattern = u8::try_from(pattern(line)).unwrap_or(0);
        let item = PolicyEntry {
            number,
            class: line.class.into(),
            ..entry()
        };
        let ports = [a, b, c, d, pattern];
        (key(POLICY_ITEM, generation, list, &ports, 40), item)
    })
}

/// A leaving TCP packet: Ethernet, IP, and the beginning of TCP.
fn packet(peer: IpAddr, local_port: u16, remote_port: u16) -> Vec<u8> {
    const TCP: u8 = 6;
    let mut packet = vec![0; 12];
    match peer {
        IpAddr::V4(peer) => {
            packet.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0]);
            packet.extend([0; 4]);
            packet.extend(peer.octets());
        }
        IpAddr::V6(peer) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, TCP, 64]);
            packet.extend([0; 16]);
            packet.extend(peer.octets());
        }
    }
    packet.extend(local_port.to_be_bytes());
    packet.extend(remote_port.to_be_bytes());
    packet.extend([0; 16]);
    packet
}
