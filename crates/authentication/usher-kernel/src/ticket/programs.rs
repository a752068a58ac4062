//! Loads and attaches bpf/authentication/ticket.

use std::os::fd::OwnedFd;
use std::path::Path;

use usher_bpf::executables::{IDENTIFY, Identifier, draw_key};
use usher_bpf::{Code, Object, code};

use super::gates::{self, Gates};
use super::types::Limits;
use crate::KernelError;

/// bpf/authentication/ticket.
pub(crate) static CODE: Code = code!("usher_ticket", "ticket");

/// The order of attaching: programs that draw come after those that write.
const PROGRAMS: [&str; 4] = ["write_token", "draw", "connect_plain4", "connect_plain6"];

/// Holds leaving SYNs; the gate program calls it. Attached before the others.
const HOLD: &str = "hold_syn";

/// The programs, attached.
pub(super) struct Programs {
    pub object: Object,
    /// The program that identifies files, or the reason that this kernel does not accept it.
    pub identify: Result<Identifier, KernelError>,
    pub gates: Gates,
    /// Keep the programs attached as long as they are open.
    pub links: Vec<OwnedFd>,
}

impl Programs {
    pub(super) fn open(
        group: &Path,
        pins: Option<&Path>,
        limits: &Limits,
    ) -> Result<Self, KernelError> {
        let gate = gates::Loaded::new(pins, limits.gates)?;
        let (object, not_identified) = match load_programs(&gate, limits, true) {
            Ok(object) => (object, None),
            // The other programs work without the one that identifies files. If they fail, too, report that.
            Err(error) => (load_programs(&gate, limits, false)?, Some(error)),
        };
        draw_key(&object)?;
        let (gates, mut links) = gate.attach(group, &object.program(HOLD)?)?;
        links.extend(object.attach_to_cgroup(&PROGRAMS, group)?);
        let identify = match not_identified {
            Some(error) => Err(error),
            None => Ok(Identifier::of(&object)?),
        };
        Ok(Self {
            object,
            identify,
            gates,
            links,
        })
    }
}

/// `identifying`: whether to load the program that identifies files.
fn load_programs(
    gate: &gates::Loaded,
    limits: &Limits,
    identifying: bool,
) -> Result<Object, KernelError> {
    CODE.open()?
        .in_own_network()?
        .choose(|program, _| Ok::<_, KernelError>(identifying || program != IDENTIFY))?
        .limit(&[
            ("tickets", limits.tickets),
            ("blocks", limits.blocks),
            ("plain", limits.destinations),
            ("listed", limits.listed),
            ("told", limits.gates),
            ("relayed", limits.destinations),
            ("connecting_owners", limits.gates),
        ])?
        .share(gate.object(), &gates::SHARED)?
        .load()
}
