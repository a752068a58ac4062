//! Loads and attaches bpf/authentication/ticket.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use usher_bpf::{Code, Object, Plain, code};
use zeroize::Zeroize;

use super::guards::{self, Guards};
use super::types::Limits;
use crate::KernelError;
use crate::shared::ticket::ProgramKey;

/// bpf/authentication/ticket.
pub(crate) static CODE: Code = code!("usher_ticket", "ticket");

/// The order of attaching: programs that draw come after those that write.
const PROGRAMS: [&str; 4] = ["write_token", "draw", "connect_plain4", "connect_plain6"];

/// Identifies an open file. Not attached.
const IDENTIFY: &str = "identify";

/// Holds leaving SYNs; the guard program calls it. Attached before the others.
const HOLD: &str = "hold_syn";

/// The programs, attached.
pub(super) struct Programs {
    pub object: Object,
    /// Or the reason that this kernel does not accept it.
    pub identify: Result<OwnedFd, KernelError>,
    pub guards: Guards,
    /// Keep the programs attached as long as they are open.
    pub links: Vec<OwnedFd>,
}

impl Programs {
    pub(super) fn open(
        group: &Path,
        pins: Option<&Path>,
        limits: &Limits,
    ) -> Result<Self, KernelError> {
        let guard = guards::Loaded::new(pins, limits.guards)?;
        let (object, not_identified) = match load(&guard, limits, true) {
            Ok(object) => (object, None),
            // The rest works without it; if the rest fails too, report that error.
            Err(error) => (load(&guard, limits, false)?, Some(error)),
        };
        set_program_key(&object)?;
        let (guards, mut links) = guard.attach(group, &object.program(HOLD)?)?;
        links.extend(object.attach_to_cgroup(&PROGRAMS, group)?);
        let identify = match not_identified {
            Some(error) => Err(error),
            None => Ok(object.program(IDENTIFY)?),
        };
        Ok(Self {
            object,
            identify,
            guards,
            links,
        })
    }
}

/// Sets the random key of the hash through which the kernel's identities of programs are visible; no
/// copy of the key is kept.
fn set_program_key(object: &Object) -> Result<(), KernelError> {
    let mut bytes = [0; size_of::<ProgramKey>()];
    getrandom::fill(&mut bytes).map_err(|error| {
        KernelError::system("drawing random bytes")(io::Error::other(error.to_string()))
    })?;
    let mut key = ProgramKey::read(&bytes).unwrap_or(ProgramKey::zeroed());
    let set = object.table("program_keys")?.set(&0_u32, &key);
    bytes.zeroize();
    key.words.zeroize();
    set
}

/// `identifying`: with the program that identifies files.
fn load(guard: &guards::Loaded, limits: &Limits, identifying: bool) -> Result<Object, KernelError> {
    CODE.open()?
        .in_own_network()?
        .choose(|program, _| Ok::<_, KernelError>(identifying || program != IDENTIFY))?
        .limit(&[
            ("tickets", limits.tickets),
            ("blocks", limits.blocks),
            ("plain", limits.destinations),
            ("listed", limits.listed),
            ("told", limits.guards),
        ])?
        .share(guard.object(), &guards::SHARED)?
        .load()
}
