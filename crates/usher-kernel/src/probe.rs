//! What this kernel can do, found by trying (never by reading version numbers or lists of LSMs),
//! for `usher doctor`. Loads programs and attaches none.

use std::path::Path;

use libbpf_rs::ObjectBuilder;

use crate::{cgroup, connections, listener};

/// One finding.
#[derive(Debug, Clone)]
pub struct Probe {
    /// What was tried.
    pub name: &'static str,
    /// Whether it works.
    pub works: bool,
    /// Whether the main job fails without it.
    pub required: bool,
    /// In plain words.
    pub detail: String,
    /// What it is for.
    pub needed_for: &'static str,
}

/// Tries everything.
#[must_use]
pub fn all() -> Vec<Probe> {
    vec![
        root(),
        bpf_file_system(),
        admission_programs(),
        control_groups(),
        destroying_connections(),
        dual_stack(),
        process_descriptors(),
        landlock(),
        seccomp(),
        lsm_programs(),
        ownership_programs(),
    ]
}

fn probe(
    name: &'static str,
    required: bool,
    needed_for: &'static str,
    outcome: Result<String, String>,
) -> Probe {
    let (works, detail) = match outcome {
        Ok(detail) => (true, detail),
        Err(detail) => (false, detail),
    };
    Probe {
        name,
        works,
        required,
        detail,
        needed_for,
    }
}

fn root() -> Probe {
    let outcome = if rustix::process::geteuid().is_root() {
        Ok("this runs as root".into())
    } else {
        Err("this does not run as root, so most of what follows could not be tried".into())
    };
    probe("privileges", true, "trying", outcome)
}

fn bpf_file_system() -> Probe {
    let path = Path::new("/sys/fs/bpf");
    let outcome = match rustix::fs::statfs(path) {
        Ok(found) if found.f_type == 0xcafe_4a11 => Ok("mounted at /sys/fs/bpf".into()),
        Ok(_) => Err("nothing is mounted at /sys/fs/bpf: mount -t bpf bpf /sys/fs/bpf".into()),
        Err(error) => Err(format!("/sys/fs/bpf: {error}")),
    };
    probe(
        "BPF file system",
        true,
        "sessions that outlive a restart of the keeper",
        outcome,
    )
}

fn admission_programs() -> Probe {
    let outcome =
        load(crate::admission::OBJECT).map(|()| "socket lookup and TCP event programs load".into());
    probe(
        "admission",
        true,
        "deciding on a connection before it is accepted",
        outcome,
    )
}

/// Tries to load the smallest LSM program.
pub(crate) fn load_lsm_program() -> Result<(), String> {
    static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o"));
    load(PROGRAM).map_err(|error| {
        format!(
            "this kernel refuses LSM programs ({error}), as it does in lockdown or without BPF LSM"
        )
    })
}

fn lsm_programs() -> Probe {
    let outcome = load_lsm_program().map(|()| "LSM programs load".into());
    probe(
        "LSM programs",
        false,
        "ownership of connections and mandatory access control; admission and workers do not \
         need them",
        outcome,
    )
}

fn ownership_programs() -> Probe {
    let outcome = quietly(crate::ownership::try_load)
        .map(|missing| match missing.as_slice() {
            [] => "the fence, connection ownership and self-protection load".into(),
            missing => format!(
                "the fence, connection ownership and self-protection load; this kernel has no \
                 hook {}, and others do its part",
                missing.join(", ")
            ),
        })
        .map_err(|error| error.to_string());
    probe(
        "ownership",
        false,
        "services that change to the user themselves, and connections that nobody but their user \
         can use",
        outcome,
    )
}

/// Loads and lets go again.
fn load(programs: &[u8]) -> Result<(), String> {
    quietly(|| {
        ObjectBuilder::default()
            .open_memory(programs)
            .and_then(libbpf_rs::OpenObject::load)
            .map(drop)
            .map_err(|error| error.to_string())
    })
}

/// Without the verifier's log, which libbpf would print: a finding is one line.
fn quietly<T>(attempt: impl FnOnce() -> T) -> T {
    let former = libbpf_rs::get_print();
    libbpf_rs::set_print(None);
    let outcome = attempt();
    libbpf_rs::set_print(former);
    outcome
}

fn control_groups() -> Probe {
    let outcome = cgroup::own()
        .map_err(|error| error.to_string())
        .and_then(|own| {
            // The root group has no cgroup.kill; any other has it from 5.14 on.
            let is_root = cgroup::mount().is_ok_and(|mount| mount == own || own.ends_with("/"));
            if is_root || own.join("cgroup.kill").exists() {
                Ok(format!("version 2, at {}", own.display()))
            } else {
                Err("cgroup.kill is missing (kernels from 5.14 have it)".into())
            }
        });
    probe(
        "control groups",
        true,
        "ending a worker with all it has started",
        outcome,
    )
}

fn destroying_connections() -> Probe {
    let outcome = connections::can_destroy()
        .map(|()| "SOCK_DESTROY answers".into())
        .map_err(|error| format!("{error} (CONFIG_INET_DIAG_DESTROY)"));
    probe(
        "cutting connections",
        true,
        "cutting the live connections of a disabled user",
        outcome,
    )
}

fn dual_stack() -> Probe {
    // Port 0: the kernel chooses; closed again at once.
    let outcome = listener::create(0, 0, 0, 1)
        .map(|_| "a listener for both families can be made".into())
        .map_err(|error| error.to_string());
    probe(
        "IPv6",
        true,
        "users' listeners, which are IPv6 sockets also for IPv4",
        outcome,
    )
}

fn process_descriptors() -> Probe {
    let outcome = rustix::process::pidfd_open(
        rustix::process::getpid(),
        rustix::process::PidfdFlags::empty(),
    )
    .map(|_| "pidfd_open works".into())
    .map_err(|error| error.to_string());
    probe(
        "process descriptors",
        true,
        "following workers without mistaking one for another",
        outcome,
    )
}

fn landlock() -> Probe {
    // SAFETY: asks for the version (LANDLOCK_CREATE_RULESET_VERSION) and makes nothing.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            1_u32,
        )
    };
    let outcome = if version > 0 {
        Ok(format!("version {version}"))
    } else {
        Err("this kernel has no Landlock, or it is not among lsm=...".into())
    };
    probe(
        "Landlock",
        false,
        "confining the verifier's file access",
        outcome,
    )
}

fn seccomp() -> Probe {
    let path = "/proc/sys/kernel/seccomp/actions_avail";
    let outcome = match std::fs::read_to_string(path) {
        Ok(actions) if actions.contains("errno") => Ok("filters work".into()),
        Ok(actions) => Err(format!(
            "the action `errno` is missing ({})",
            actions.trim()
        )),
        Err(error) => Err(format!("{path}: {error}")),
    };
    probe(
        "seccomp",
        true,
        "confining the daemons' system calls",
        outcome,
    )
}
