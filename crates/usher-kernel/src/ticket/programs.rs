//! Loading and attaching of bpf/ticket.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder};

use super::types::Limits;
use crate::KernelError;
use crate::admission::programs::{clone, file_error, print_through_tracing};
use crate::cgroup;

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
    pub links: Vec<OwnedFd>,
}

impl Programs {
    pub(super) fn open(group: &Path, limits: &Limits) -> Result<Self, KernelError> {
        print_through_tracing();
        let folder = File::open(group).map_err(file_error("opening", group))?;
        let object = load(limits)?;
        let handle = |name: &'static str| -> Result<MapHandle, KernelError> {
            let map = object
                .maps()
                .find(|map| map.name() == name)
                .ok_or(KernelError::MissingPart(name))?;
            MapHandle::try_from(&map).map_err(KernelError::bpf("keeping a table"))
        };
        let mut links = Vec::new();
        for name in PROGRAMS {
            let program = object
                .progs_mut()
                .find(|program| program.name() == name)
                .ok_or(KernelError::MissingPart(name))?;
            // A link, beside which others' programs go on running.
            let link = program
                .attach_cgroup(folder.as_raw_fd())
                .map_err(KernelError::bpf("attaching to the cgroup"))?;
            links.push(clone(&link)?);
        }
        // What is sent in a connection's place comes from the caller's own group.
        let own = cgroup::own()?;
        if !own.starts_with(group) {
            let folder = File::open(&own).map_err(file_error("opening", &own))?;
            let program = object.progs_mut().find(|program| program.name() == HOLD);
            let link = program
                .ok_or(KernelError::MissingPart(HOLD))?
                .attach_cgroup(folder.as_raw_fd())
                .map_err(KernelError::bpf("attaching to the cgroup"))?;
            links.push(clone(&link)?);
        }
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
            links,
        })
    }
}

fn load(limits: &Limits) -> Result<Object, KernelError> {
    let mut open = ObjectBuilder::default()
        .name("usher_ticket")
        .and_then(|builder| builder.open_memory(OBJECT))
        .map_err(KernelError::bpf("reading the ticket programs"))?;
    for mut map in open.maps_mut() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            // `own_network`, the only constant.
            let constants = map
                .initial_value_mut()
                .ok_or(KernelError::MissingPart("own_network"))?;
            let own = crate::namespace::own_network()?.to_ne_bytes();
            if constants.len() != own.len() {
                return Err(KernelError::MissingPart("own_network"));
            }
            constants.copy_from_slice(&own);
            continue;
        }
        let limit = match map.name().to_str() {
            Some("tickets") => limits.tickets,
            Some("blocks") => limits.blocks,
            Some("plain") => limits.destinations,
            Some("guards" | "told") => limits.guards,
            _ => continue,
        };
        map.set_max_entries(limit)
            .map_err(KernelError::bpf("sizing a table"))?;
    }
    open.load()
        .map_err(KernelError::bpf("loading the ticket programs"))
}
