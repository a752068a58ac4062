//! The kernel programs of bpf/ipsec, and the tables by which they decide.

mod loading;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use usher_base::address_bytes;
use usher_bpf::executables::{self, Identifier};
use usher_bpf::{
    Insertion, Iteration, KernelError, Lack, Object, Objects, Pins, Table, run_on_packet,
};
use usher_protection::{Class, Level};

use crate::error::IpsecError;
use crate::live::Row;
use crate::marks::MarkMask;
use crate::plan::{Application, Digest};
use crate::programs::{Daemons, Identities, Kernel};
use crate::release::{STATE, end_monitor, mask_in_force};
pub use crate::shared::IpsecCounters as Counters;
use crate::shared::{Held, IPSEC_LAYOUT, IpsecState, POLICY_PLACES};
use crate::table::entries;
pub use loading::SWITCHED_OFF;

use loading::{
    AT_CALLS, AT_PACKETS, AtHooks, CALLS, CODE, LISTS, LIVE, MARKS, NEXT_GENERATION, OF_SOCKETS,
    PACKETS, PINNED, PREPARES, SCRIPTS, SHARED, at_hooks, attach_monitor, daemons, forget_scripts,
    load_calls, load_live, load_scripts,
};

/// How long sockets are looked for before a policy comes in force.
const PREPARING: Duration = Duration::from_secs(2);

/// How protection is put in force.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of the control group whose sockets are seen.
    pub cgroup: PathBuf,
    /// A folder of a BPF file system: what is in force outlives the process. None: it does not.
    pub pins: Option<PathBuf>,
    /// The bits of socket marks that are ours.
    pub mask: MarkMask,
    /// Loads LSM programs, where the kernel runs them. They run for the whole host, and leave programs
    /// outside the control group alone.
    pub lsm: bool,
    /// The executable of Usher's daemons, which is running. No block may name it.
    pub daemons: PathBuf,
    /// The file for the former values of sysctls. None: sysctls stay as they are.
    pub sysctls: Option<PathBuf>,
}

/// The monitor: loaded, attached and filled.
///
/// Dropping it ends it, unless it was opened with pins: then everything stays in force.
pub struct Monitor {
    policies: Table<u32, u32>,
    state: Table<u32, IpsecState>,
    next_generation: Table<u32, u32>,
    held: Table<Held, u32>,
    signatures: Table<Digest, u32>,
    counters: usher_bpf::Counters<Counters>,
    decide: OwnedFd,
    identifier: Identifier,
    mask: MarkMask,
    pins: Option<Pins>,
    /// The programs that list sockets, or the reason that this kernel does not accept them.
    live: Result<Object, KernelError>,
    /// The reason that LSM programs do not see calls.
    unseen_calls: Option<String>,
    /// The reason that LSM programs do not tell scripts apart.
    unseen_scripts: Option<String>,
    /// Programs and tables, links without a pin.
    objects: Objects,
    _links: Vec<OwnedFd>,
    daemons: Daemons,
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
    /// The kernel's reason.
    pub fn probe() -> Result<(), Lack> {
        CODE.probe()?;
        PACKETS.probe()
    }

    /// Tries whether this kernel accepts the programs that list sockets and mark connections.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn probe_listing() -> Result<(), Lack> {
        LIVE.probe()
    }

    /// Loads the programs and attaches them to the control group of the settings. They see the sockets
    /// that are made in it and below; LSM programs and the listing leave programs outside it alone.
    /// Nothing is governed before the first [`Monitor::fill`], except by pinned tables that an earlier
    /// process filled.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(settings: &Settings) -> Result<Self, IpsecError> {
        let (cgroup, mask) = (settings.cgroup.as_path(), settings.mask);
        let pins = settings.pins.as_deref().map(Pins::lock).transpose()?;
        let mut opened = CODE.open()?;
        if let Some(pins) = &pins {
            pins.require_layout(IPSEC_LAYOUT)?;
            if let Some(former) = mask_in_force(pins).filter(|former| *former != mask) {
                let (former, asked) = (former.bits(), mask.bits());
                return Err(IpsecError::MaskInForce { former, asked });
            }
            opened = opened.pin(pins, Some(&PINNED))?;
        }
        let object = opened.load()?;
        if let Some(pins) = &pins {
            pins.note_layout(&object, IPSEC_LAYOUT)?;
        }
        executables::draw_key(&object)?;
        let state: Table<u32, IpsecState> = object.table(STATE)?;
        let former = state.get(&0)?.map_or(0, |state| state.generation);
        state.set(&0, &in_force(former, mask))?;
        let identifier = Identifier::of(&object)?;
        let daemons = daemons(&identifier, &settings.daemons)?;
        let packets = PACKETS.open()?.share(&object, &SHARED)?;
        let packets = packets.share(&object, &OF_SOCKETS)?.load()?;
        let mut links = attach_monitor(&object, &AT_CALLS, cgroup, pins.as_ref())?;
        links.extend(attach_monitor(
            &packets,
            &AT_PACKETS,
            cgroup,
            pins.as_ref(),
        )?);
        let live = load_live(&object, cgroup);
        let mut objects = Objects::default();
        object.collect(&mut objects)?;
        packets.collect(&mut objects)?;
        live.iter()
            .try_for_each(|live| live.collect(&mut objects))?;
        let (lsm, pinned) = (settings.lsm, pins.as_ref());
        let scripts = at_hooks(&SCRIPTS, lsm, pinned, || load_scripts(&object))?;
        if scripts.is_err() {
            forget_scripts(&object, pinned)?;
        }
        let calls = at_hooks(&CALLS, lsm, pinned, || load_calls(&object, cgroup))?;
        let unseen = |attached: &AtHooks| attached.as_ref().err().cloned();
        let (unseen_scripts, unseen_calls) = (unseen(&scripts), unseen(&calls));
        for (loaded, more) in [scripts, calls].into_iter().flatten() {
            loaded.collect(&mut objects)?;
            links.extend(more);
        }
        links
            .iter()
            .try_for_each(|link| objects.add_descriptor(link))?;
        Ok(Self {
            policies: object.table("policies")?,
            state,
            next_generation: object.table(NEXT_GENERATION)?,
            held: object.table("held")?,
            signatures: object.table("signatures")?,
            counters: object.counters("counters")?,
            decide: packets.program("decide")?,
            identifier,
            daemons,
            mask,
            pins,
            live,
            unseen_calls,
            unseen_scripts,
            objects,
            _links: links,
        })
    }

    /// The folder of the pins, which is locked.
    pub(crate) fn pins(&self) -> Option<&Pins> {
        self.pins.as_ref()
    }

    pub(crate) fn kernel(&self) -> Kernel<'_> {
        Kernel {
            identifier: &self.identifier,
            daemons: &self.daemons,
            tells_scripts_apart: self.unseen_scripts.is_none(),
        }
    }

    /// Puts a policy in force, at once for all programs: its table is complete and in its place before the
    /// generation goes up. With an error the former policy is in force. `programs` has the executables of
    /// each application.
    ///
    /// Before the policy comes into force, sockets of programs that only this policy governs become these
    /// programs' own. Returns the number of these sockets. On return no program decides by the former policy
    /// any more.
    pub(crate) fn fill(
        &self,
        applications: &[Application],
        programs: &[Identities],
    ) -> Result<usize, IpsecError> {
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
        let descriptor = table.as_raw_fd().unsigned_abs();
        self.policies.set(&place, &descriptor)?;
        self.next_generation.set(&0, &generation)?;
        let prepared = self.prepare();
        let entered = self.state.set(&0, &in_force(generation, self.mask));
        let ended = self.next_generation.set(&0, &0);
        entered?;
        // Whenever a table takes another one's place, the kernel waits for the programs that run. The policy
        // is in force even if this fails.
        if let Err(error) = ended.and_then(|()| self.policies.set(&place, &descriptor)) {
            tracing::warn!(%error, "cannot wait for calls that go on: the former policy may decide \
                them");
        }
        Ok(prepared)
    }

    /// Finds the sockets that the next policy will govern and this one does not, so that no use of them
    /// is refused once it is in force. Returns their number. It ends after some seconds even if it has not
    /// seen all descriptors, because users decide how many there are.
    fn prepare(&self) -> usize {
        let mut prepared = 0;
        // Without a listing, `begin_visit` says so.
        if let Ok(live) = &self.live {
            let begun = live.begin(PREPARES);
            let count = |_: Row| prepared += 1;
            match begun.and_then(|mut visit| visit.go_on(PREPARING, count)) {
                Ok(true) => {}
                Ok(false) => tracing::warn!(
                    "cannot find all older connections in time, because processes hold very many \
                     descriptors: they may fail until they are found"
                ),
                Err(error) => {
                    tracing::warn!(%error, "cannot find older connections: they may fail until \
                        they are found");
                }
            }
        }
        prepared
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

    /// The peers that are held, also by an earlier process.
    pub(crate) fn held(&self) -> Result<BTreeSet<(Class, IpAddr)>, IpsecError> {
        let entries = self.held.entries()?.into_iter();
        let peers = entries.filter_map(|(held, _)| {
            let (class, _) = Class::of_mark(u8::try_from(held.class).ok()?)?;
            Some((class, Ipv6Addr::from(held.address).to_canonical()))
        });
        Ok(peers.collect())
    }

    /// The numbers of signatures, also an earlier process's.
    pub(crate) fn signatures(&self) -> Result<BTreeMap<Digest, u32>, IpsecError> {
        Ok(self.signatures.entries()?.into_iter().collect())
    }

    /// Remembers these numbers as well, before sockets get them.
    pub(crate) fn add_signatures(&self, numbers: &BTreeMap<Digest, u16>) -> Result<(), IpsecError> {
        for (digest, number) in numbers {
            self.signatures.set(digest, &(*number).into())?;
        }
        Ok(())
    }

    /// Forgets all other numbers.
    pub(crate) fn keep_signatures(
        &self,
        numbers: &BTreeMap<Digest, u16>,
    ) -> Result<(), IpsecError> {
        for digest in self.signatures()?.keys() {
            if !numbers.contains_key(digest) {
                self.signatures.remove(digest)?;
            }
        }
        Ok(())
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
        let operation = "ask how a packet is treated";
        let class = run_on_packet(self.decide.as_fd(), operation, &packet, application)?;
        Ok(u8::try_from(class).unwrap_or(0))
    }

    /// Returns whether this kernel lists sockets.
    pub(crate) fn lists_sockets(&self) -> bool {
        self.live.is_ok()
    }

    /// Begins a visit of all descriptors. It returns a row for each process and socket, sometimes several:
    /// for sockets of governed programs, and for sockets with a mark of ours that a program with a former
    /// block made. Sockets that are older than the policy, or were made by another program, become the
    /// holder's program's: their packets are treated by its policy from now on.
    ///
    /// A descriptor that is only on its way between processes is not seen. One visit goes on at a time,
    /// though several may have begun.
    pub(crate) fn begin_visit(&self) -> Result<Iteration, IpsecError> {
        Ok(self.live()?.begin(LISTS)?)
    }

    /// The generation of the policy in force.
    pub(crate) fn generation(&self) -> Result<u32, IpsecError> {
        Ok(self.state.get(&0)?.map_or(0, |state| state.generation))
    }

    /// Gives the TCP connections of governed programs, in the caller's network namespace, the marks
    /// that the policy demands.
    pub(crate) fn mark_connections(&self) -> Result<(), IpsecError> {
        Ok(self.live()?.iterate(MARKS, |_: Row| {})?)
    }

    fn live(&self) -> Result<&Object, IpsecError> {
        let live = self.live.as_ref();
        live.map_err(|error| IpsecError::Unlisted(error.to_string()))
    }

    /// Programs, tables, links and pins that are in force, for the guard. The table of the policy is
    /// another one after each [`Monitor::fill`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn objects(&self) -> Result<Objects, IpsecError> {
        let mut objects = self.objects.clone();
        if let Some(pins) = &self.pins {
            objects.collect(pins.folder())?;
        }
        for place in 0..POLICY_PLACES {
            // The kernel returns the id of the inner table; 0: none yet.
            let policy = self.policies.get(&place)?;
            objects.maps.extend(policy.filter(|id| *id != 0));
        }
        Ok(objects)
    }

    /// The reason that no LSM programs see how governed programs use sockets that others have made, and
    /// other families of sockets. None: they see it.
    pub fn unseen_calls(&self) -> Option<&str> {
        self.unseen_calls.as_deref()
    }

    /// The reason that no LSM programs see which script a process executes, so that its interpreter
    /// counts. None: they see it.
    pub fn unseen_scripts(&self) -> Option<&str> {
        self.unseen_scripts.as_deref()
    }

    /// The events since the tables were made.
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
            end_monitor(&pins)?;
            pins.remove_folder()?;
        }
        Ok(())
    }
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
