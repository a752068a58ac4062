//! Loading and attaching of bpf/ticket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use zeroize::Zeroizing;

use super::guards::{self, Guards};
use super::types::Limits;
use crate::admission::programs::{clone, print_through_tracing};
use crate::{KernelError, attach};

/// The compiled bpf/ticket.
pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ticket.bpf.o"));

/// The order of attaching: what draws comes after what writes.
const PROGRAMS: [&str; 4] = ["write_token", "draw", "connect_plain4", "connect_plain6"];

/// Tells which program an open file is. Not attached.
const IDENTIFY: &str = "identify";

/// Sees what leaves, called by what guards. Attached before the others.
const HOLD: &str = "hold_syn";

/// The programs' tables, and the links that keep the programs attached as long as they are open.
pub(super) struct Programs {
    pub tickets: OwnedFd,
    pub blocks: OwnedFd,
    pub counters: OwnedFd,
    pub wanted: MapHandle,
    pub plain: OwnedFd,
    pub holds: OwnedFd,
    pub guards: Guards,
    pub reports: MapHandle,
    /// Not kept: what is entered stays as it is.
    pub senders: OwnedFd,
    pub listed: OwnedFd,
    pub askers: OwnedFd,
    /// Or why this kernel does not take it.
    pub identify: Result<OwnedFd, KernelError>,
    pub links: Vec<OwnedFd>,
}

impl Programs {
    pub(super) fn open(
        group: &Path,
        pins: Option<&Path>,
        limits: &Limits,
    ) -> Result<Self, KernelError> {
        print_through_tracing();
        let guard = guards::Loaded::new(pins, limits.guards)?;
        let (object, not_identified) = match load(&guard, limits, true) {
            Ok(object) => (object, None),
            // The rest is of use without, and when it is not, that is what to tell.
            Err(error) => (load(&guard, limits, false)?, Some(error)),
        };
        let handle = |name: &'static str| -> Result<MapHandle, KernelError> {
            let map = object
                .maps()
                .find(|map| map.name() == name)
                .ok_or(KernelError::MissingPart(name))?;
            MapHandle::try_from(&map).map_err(KernelError::bpf("keeping a table"))
        };
        set_program_key(&handle("program_keys")?)?;
        let hold = object.progs().find(|program| program.name() == HOLD);
        let hold = hold.ok_or(KernelError::MissingPart(HOLD))?;
        let holds = clone(&guard.map("holds")?)?;
        let (guards, mut links) = guard.attach(group, hold.as_fd())?;
        links.extend(attach::to_cgroup(&object, &PROGRAMS, group)?);
        let identify = match not_identified {
            Some(error) => Err(error),
            None => {
                let program = object.progs().find(|program| program.name() == IDENTIFY);
                Ok(clone(&program.ok_or(KernelError::MissingPart(IDENTIFY))?)?)
            }
        };
        Ok(Self {
            tickets: clone(&handle("tickets")?)?,
            blocks: clone(&handle("blocks")?)?,
            counters: clone(&handle("counters")?)?,
            wanted: handle("wanted")?,
            plain: clone(&handle("plain")?)?,
            holds,
            guards,
            reports: handle("reports")?,
            senders: clone(&handle("senders")?)?,
            listed: clone(&handle("listed")?)?,
            askers: clone(&handle("askers")?)?,
            identify,
            links,
        })
    }
}

/// What the kernel knows programs by is seen through a keyed hash, whose key nobody learns.
fn set_program_key(map: &MapHandle) -> Result<(), KernelError> {
    let mut key = Zeroizing::new([0; 16]);
    getrandom::fill(&mut *key).map_err(|error| {
        KernelError::system("drawing random bytes")(io::Error::other(error.to_string()))
    })?;
    map.update(&0_u32.to_ne_bytes(), &*key, MapFlags::ANY)
        .map_err(KernelError::bpf("setting the key of programs"))
}

/// `identifying`: with the program that tells which program a file is.
fn load(guard: &guards::Loaded, limits: &Limits, identifying: bool) -> Result<Object, KernelError> {
    let mut open = ObjectBuilder::default()
        .name("usher_ticket")
        .and_then(|builder| builder.open_memory(OBJECT))
        .map_err(KernelError::bpf("reading the ticket programs"))?;
    attach::set_own_network(&mut open)?;
    for mut program in open.progs_mut() {
        if program.name() == IDENTIFY {
            program.set_autoload(identifying);
        }
    }
    for mut map in open.maps_mut() {
        let limit = match map.name().to_str() {
            Some("tickets") => limits.tickets,
            Some("blocks") => limits.blocks,
            Some("plain") => limits.destinations,
            Some("listed") => limits.listed,
            Some("told") => limits.guards,
            Some(name @ ("guards" | "holds")) => {
                let shared = if name == "guards" { "guards" } else { "holds" };
                map.reuse_fd(guard.map(shared)?.as_fd())
                    .map_err(KernelError::bpf("sharing a table"))?;
                continue;
            }
            _ => continue,
        };
        map.set_max_entries(limit)
            .map_err(KernelError::bpf("sizing a table"))?;
    }
    open.load()
        .map_err(KernelError::bpf("loading the ticket programs"))
}
