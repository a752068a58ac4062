//! The programs of the monitor and their tables by name: loading and attaching them.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use usher_bpf::executables::{self, Identifier};
use usher_bpf::{Code, Hooks, KernelError, Object, Pins, Table, cgroup_number, code};

use crate::error::IpsecError;
use crate::programs::Daemons;
use crate::shared::Execution;

/// The object with the programs at calls and their tables.
pub(super) static CODE: Code = code!("usher_ipsec", "monitor");
/// The programs at packets.
pub(super) static PACKETS: Code = code!("usher_packets", "packets");

/// The programs that are run when sockets are listed. They are not attached.
pub(super) static LIVE: Code = code!("usher_live", "live");
/// The programs of [`LIVE`].
pub(super) const LISTS: &str = "lists";
pub(super) const PREPARES: &str = "prepares";
pub(super) const MARKS: &str = "marks";
/// The table of [`LIVE`] with the control group below which programs are governed.
const REACH_NUMBER: &str = "reach_number";
/// The tables that all objects have.
pub(super) const SHARED: [&str; 8] = [
    "policies",
    "state",
    NEXT_GENERATION,
    "held",
    "counters",
    "program_keys",
    EXECUTIONS,
    EXECUTION_COUNT,
];
/// The generation of the policy that is about to come in force.
pub(super) const NEXT_GENERATION: &str = "next_generation";
/// The scripts that processes execute, and their number.
const EXECUTIONS: &str = "executions";
const EXECUTION_COUNT: &str = "execution_count";
/// The tables that all but [`SCRIPTS`] have.
pub(super) const OF_SOCKETS: [&str; 3] = ["sockets", "ungoverned", "known_makers"];

/// LSM programs that tell scripts apart, where the kernel runs them.
pub(super) static SCRIPTS: Code = code!("usher_scripts", "scripts");

/// LSM programs that see uses of sockets, where the kernel runs them.
pub(super) static CALLS: Code = code!("usher_calls", "calls");
/// The reason that LSM programs do not run, where the settings say so.
pub const SWITCHED_OFF: &str = "switched off by --without-lsm";
/// The table of [`CALLS`] with the control group below which its programs act.
const REACH: &str = "reach";
/// The constant of [`CALLS`] that is 1 if that control group is the root.
const REACHES_ALL: &str = "reaches_all";
/// The kernel's number of the root of control groups.
const ROOT_GROUP: u64 = 1;

/// The programs at calls, in the order of attaching.
pub(super) const AT_CALLS: [&str; 11] = [
    "made",
    "connects4",
    "connects6",
    "sends4",
    "sends6",
    "keeps",
    "asks_peer4",
    "asks_peer6",
    "asks_own4",
    "asks_own6",
    "changes",
];

/// The programs at packets: after those that mark sockets.
pub(super) const AT_PACKETS: [&str; 2] = ["arrives", "leaves"];

/// The tables that outlive the process, with the programs.
pub(super) const PINNED: [&str; 10] = [
    "layout",
    "policies",
    "state",
    "held",
    "signatures",
    "counters",
    "sockets",
    "program_keys",
    EXECUTIONS,
    EXECUTION_COUNT,
];

/// Loads the LSM programs at calls. They and the cgroup's programs share tables, and so use each
/// other's results.
pub(super) fn load_calls(monitor: &Object, cgroup: &Path) -> Result<Object, KernelError> {
    let hooks = Hooks::of_kernel()?;
    let only_hooks = |_: &str, hook: &str| Ok::<_, KernelError>(hooks.has(hook));
    let opened = CALLS.open()?.choose(only_hooks)?;
    let reaches_all = cgroup_number(cgroup)? == ROOT_GROUP;
    let opened = opened.set_constant(REACHES_ALL, reaches_all.into())?;
    let shared = opened.share(monitor, &SHARED)?;
    let calls = shared.share(monitor, &OF_SOCKETS)?.load()?;
    calls.enter_cgroup(REACH, cgroup)?;
    Ok(calls)
}

pub(super) fn load_scripts(monitor: &Object) -> Result<Object, KernelError> {
    let all = |name: &str, _: &str| Ok::<_, KernelError>(name != executables::IDENTIFY);
    let opened = SCRIPTS.open()?.choose(all)?;
    opened.share(monitor, &SHARED)?.load()
}

/// Attached LSM programs and the links without a pin, or the reason that they do not run.
pub(super) type AtHooks = Result<(Object, Vec<OwnedFd>), String>;

/// Loads and attaches LSM programs. Without `lsm`, those of an earlier process end.
pub(super) fn at_hooks(
    code: &Code,
    lsm: bool,
    pins: Option<&Pins>,
    load: impl FnOnce() -> Result<Object, KernelError>,
) -> Result<AtHooks, KernelError> {
    if !lsm {
        pins.map_or(Ok(()), |pins| code.open()?.let_go_of_hooks(pins))?;
        return Ok(Err(SWITCHED_OFF.to_owned()));
    }
    let attached = load().and_then(|object| {
        let links = match pins {
            None => object.attach_at_hooks()?,
            Some(pins) => {
                object.keep_at_hooks(pins)?;
                Vec::new()
            }
        };
        Ok((object, links))
    });
    Ok(attached.map_err(|error| error.to_string()))
}

/// Empties the table of scripts, which no program keeps up to date any more: a new task could pass
/// for an earlier one.
pub(super) fn forget_scripts(object: &Object, pins: Option<&Pins>) -> Result<(), KernelError> {
    pins.map_or(Ok(()), |pins| SCRIPTS.open()?.let_go_of_hooks(pins))?;
    let executions: Table<u64, Execution> = object.table(EXECUTIONS)?;
    for (thread, _) in executions.entries()? {
        executions.remove(&thread)?;
    }
    object.table::<u32, u64>(EXECUTION_COUNT)?.set(&0, &0)
}

/// The executable of Usher's daemons.
pub(super) fn daemons(identifier: &Identifier, path: &Path) -> Result<Daemons, KernelError> {
    let flags = OFlags::PATH.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(KernelError::file("open", path))?;
    let (program, place) = identifier.executed(file.as_fd())?;
    Ok(Daemons {
        program,
        place,
        _open: file,
    })
}

pub(super) fn load_live(monitor: &Object, cgroup: &Path) -> Result<Object, KernelError> {
    let shared = LIVE.open()?.share(monitor, &SHARED)?;
    let live = shared.share(monitor, &OF_SOCKETS)?.load()?;
    live.table::<u32, u64>(REACH_NUMBER)?
        .set(&0, &cgroup_number(cgroup)?)?;
    Ok(live)
}

pub(super) fn attach_monitor(
    object: &Object,
    programs: &[&'static str],
    cgroup: &Path,
    pins: Option<&Pins>,
) -> Result<Vec<OwnedFd>, IpsecError> {
    let Some(pins) = pins else {
        return Ok(object.attach_to_cgroup(programs, cgroup)?);
    };
    for program in programs {
        object.keep_at_cgroup(program, pins, cgroup)?;
    }
    Ok(Vec::new())
}
