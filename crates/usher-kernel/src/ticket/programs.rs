//! Loading and attaching of bpf/ticket.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use zeroize::Zeroizing;

use super::types::Limits;
use crate::admission::programs::{clone, print_through_tracing};
use crate::{KernelError, attach, cgroup};

/// The compiled bpf/ticket.
pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ticket.bpf.o"));

/// The order of attaching: what draws comes after what writes, what marks after what holds.
const PROGRAMS: [&str; 5] = [
    "write_token",
    HOLD,
    "draw",
    "connect_plain4",
    "connect_plain6",
];

/// Tells which program an open file is. Not attached.
const IDENTIFY: &str = "identify";

/// Sees what leaves.
const HOLD: &str = "hold_syn";

/// The programs' tables, and the links that keep the programs attached as long as they are open.
pub(super) struct Programs {
    pub tickets: OwnedFd,
    pub blocks: OwnedFd,
    pub counters: OwnedFd,
    pub wanted: MapHandle,
    pub plain: OwnedFd,
    pub holds: OwnedFd,
    pub guards: OwnedFd,
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
    pub(super) fn open(group: &Path, limits: &Limits) -> Result<Self, KernelError> {
        print_through_tracing();
        let (object, not_identified) = match load(limits, true) {
            Ok(object) => (object, None),
            // The rest is of use without, and when it is not, that is what to tell.
            Err(error) => (load(limits, false)?, Some(error)),
        };
        let handle = |name: &'static str| -> Result<MapHandle, KernelError> {
            let map = object
                .maps()
                .find(|map| map.name() == name)
                .ok_or(KernelError::MissingPart(name))?;
            MapHandle::try_from(&map).map_err(KernelError::bpf("keeping a table"))
        };
        set_program_key(&handle("program_keys")?)?;
        let mut links = attach::to_cgroup(&object, &PROGRAMS, group)?;
        // What is sent in a connection's place comes from the caller's own group.
        let own = cgroup::own()?;
        if !own.starts_with(group) {
            links.extend(attach::to_cgroup(&object, &[HOLD], &own)?);
        }
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
            holds: clone(&handle("holds")?)?,
            guards: clone(&handle("guards")?)?,
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
fn load(limits: &Limits, identifying: bool) -> Result<Object, KernelError> {
    let mut open = ObjectBuilder::default()
        .name("usher_ticket")
        .and_then(|builder| builder.open_memory(OBJECT))
        .map_err(KernelError::bpf("reading the ticket programs"))?;
    crate::namespace::set_own_network(&mut open)?;
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
            Some("guards" | "told") => limits.guards,
            _ => continue,
        };
        map.set_max_entries(limit)
            .map_err(KernelError::bpf("sizing a table"))?;
    }
    open.load()
        .map_err(KernelError::bpf("loading the ticket programs"))
}
