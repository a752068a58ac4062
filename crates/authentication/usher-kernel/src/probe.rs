//! The features of this kernel, for `usher doctor`: found by trying, and by reading versions and lists
//! only where trying cannot decide. Loads programs, and attaches none to this host. Netfilter programs
//! are attached in a network namespace of their own, because kernels load some that they cannot attach.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use usher_bpf::Lack;
use usher_system::{connections, sandbox};

use crate::{cgroup, listener};

/// A feature's finding in words, or the reason that the feature does not work.
type Outcome = Result<String, Lack>;

/// One feature to try.
#[derive(Debug)]
pub struct Probe {
    /// The feature's name.
    pub name: &'static str,
    /// Whether a host that needs the feature fails without it.
    pub required: bool,
    /// The feature's purpose.
    pub needed_for: &'static str,
    attempt: fn() -> Outcome,
}

impl Probe {
    /// A feature; `attempt` returns the finding in words, or the reason that it does not work.
    #[must_use]
    pub const fn new(
        name: &'static str,
        required: bool,
        needed_for: &'static str,
        attempt: fn() -> Result<String, Lack>,
    ) -> Self {
        Self {
            name,
            required,
            needed_for,
            attempt,
        }
    }

    /// Tries the feature.
    ///
    /// # Errors
    /// The reason that the feature does not work.
    pub fn run(&self) -> Result<String, Lack> {
        (self.attempt)()
    }
}

/// All features, in the order of display.
pub static ALL: &[Probe] = &[
    Probe::new("privileges", true, "trying", root),
    Probe::new(
        "BPF file system",
        true,
        "sessions that outlive a restart of the keeper",
        bpf_file_system,
    ),
    Probe::new(
        "admission",
        true,
        "deciding on a connection before it is accepted",
        || {
            crate::admission::CODE
                .probe()
                .map(|()| "the programs for socket lookup, TCP events and tokens load".into())
        },
    ),
    Probe::new(
        "tokens under IPsec",
        false,
        "reading tokens in fragments, under IPsec, and on interfaces that have just come up; otherwise \
         such connections are announced",
        || {
            crate::admission::probe_arriving()
                .map(|()| "the program that reads tokens at LOCAL_IN can be attached".into())
        },
    ),
    Probe::new(
        "protected services",
        false,
        "services with `protection`, whose users are refused otherwise",
        || {
            crate::protected::probe()
                .map(|()| "the program that compares packets after IPsec can be attached".into())
        },
    ),
    Probe::new(
        "tickets",
        false,
        "a user's next connections without a word to the server, which are announced otherwise; \
         `programs any`",
        || {
            crate::ticket::CODE
                .probe()
                .map(|()| "the programs that put tokens into SYNs, and that hold SYNs, load".into())
        },
    ),
    Probe::new(
        "gates",
        false,
        "keeping an announced connection from other users of this host when the signer dies",
        || {
            crate::ticket::gates::CODE
                .probe()
                .map(|()| "the program that gates announced connections loads".into())
        },
    ),
    Probe::new(
        "held connections",
        false,
        "first connections by `programs any` without a second's delay",
        || {
            crate::ticket::SynSender::can_open()?;
            Ok("raw sockets can be opened".into())
        },
    ),
    Probe::new(
        "reserved ports",
        false,
        "keeping a service's port, and the proxy's, from other local users",
        || {
            crate::ports::CODE
                .probe()
                .map(|()| "the programs for bind(2) load".into())
        },
    ),
    Probe::new(
        "destinations",
        false,
        "services with `connect`, which refuse their users otherwise",
        || {
            crate::destinations::CODE
                .probe()
                .map(|()| "the programs for connect(2) of a service's processes load".into())
        },
    ),
    Probe::new(
        "control groups",
        true,
        "ending a worker with all it has started",
        control_groups,
    ),
    Probe::new(
        "cutting connections",
        true,
        "cutting the live connections of a disabled user",
        || {
            connections::can_destroy()
                .map_err(|error| Lack::new(format!("{error} (CONFIG_INET_DIAG_DESTROY)")))?;
            Ok("SOCK_DESTROY answers".into())
        },
    ),
    Probe::new(
        "IPv6",
        true,
        "users' listeners, which are IPv6 sockets also for IPv4",
        || {
            // Port 0: the kernel chooses; closed again at once.
            listener::create(0, 0, 0, 1)?;
            Ok("a listener for both families can be made".into())
        },
    ),
    Probe::new(
        "process descriptors",
        true,
        "following workers without mistaking one for another",
        process_descriptors,
    ),
    Probe::new(
        "Landlock",
        false,
        "confining the daemons' file access, and services with `files`",
        landlock,
    ),
    Probe::new(
        "seccomp",
        true,
        "confining the daemons' system calls",
        seccomp,
    ),
    Probe::new(
        "LSM programs",
        false,
        "ownership of connections and mandatory access control; admission and workers do not need \
         them",
        lsm_programs,
    ),
    Probe::new(
        "ownership",
        false,
        "services that change to the user themselves, and connections that only their user \
         can use",
        ownership_programs,
    ),
    Probe::new(
        "ownership and io_uring",
        false,
        "connections that root cannot read either, with a descriptor that it holds",
        zero_copy_receive,
    ),
    Probe::new(
        "ownership and preemption",
        false,
        "services that change to the user themselves",
        task_storage,
    ),
];

fn root() -> Outcome {
    if rustix::process::geteuid().is_root() {
        Ok("this runs as root".into())
    } else {
        Err(Lack::new(
            "this does not run as root, so most of what follows could not be tried",
        ))
    }
}

fn bpf_file_system() -> Outcome {
    match rustix::fs::statfs(Path::new("/sys/fs/bpf")) {
        Ok(found) if found.f_type == 0xcafe_4a11 => Ok("mounted at /sys/fs/bpf".into()),
        Ok(_) => Err(Lack::new(
            "nothing is mounted at /sys/fs/bpf: mount -t bpf bpf /sys/fs/bpf",
        )),
        Err(error) => Err(Lack::new(format!("/sys/fs/bpf: {error}"))),
    }
}

/// Whether LSM programs run here. Needs root.
fn lsm_programs() -> Outcome {
    // A kernel that refuses LSM programs may list bpf all the same, so the list decides only where they load.
    crate::ownership::load_lsm_program().and_then(|()| {
        let list = "/sys/kernel/security/lsm";
        match std::fs::read_to_string(list) {
            Ok(names) if names.trim_end().split(',').any(|name| name == "bpf") => {
                Ok("LSM programs load, and bpf is among the LSMs in force".into())
            }
            Ok(names) => Err(Lack::new(format!(
                "LSM programs load and are never called: bpf is not among the LSMs in force; \
                 start the kernel with lsm={},bpf",
                names.trim_end()
            ))),
            Err(error) => Ok(format!(
                "LSM programs load; whether they are called cannot be read ({list}: {error})"
            )),
        }
    })
}

fn ownership_programs() -> Outcome {
    const LOADED: &str = "the fence, connection ownership and the guard load";
    let missing = crate::ownership::try_load()?;
    Ok(match missing.as_slice() {
        [] => LOADED.into(),
        missing => format!(
            "{LOADED}; this kernel has no hook {}, and others do its part",
            missing.join(", ")
        ),
    })
}

/// IORING_OP_RECV_ZC (linux/io_uring.h, kernel 6.15).
const RECEIVE_ZERO_COPY: usize = 58;

/// Whether io_uring offers an operation; none if it offers nothing at all, not even to root.
fn ring_offers(operation: usize) -> Result<Option<bool>, io::Error> {
    const PARAMETERS: usize = 120;
    const REGISTER_PROBE: libc::c_uint = 8;
    const OPERATIONS: usize = 128;
    const SUPPORTED: u8 = 1;
    // struct io_uring_probe: 16 bytes, then 8 for each operation, whose flags are at 2.
    let (header, each, flags) = (16, 8, 2);

    let mut parameters = [0_u8; PARAMETERS];
    // SAFETY: the kernel fills a struct io_uring_params, which is 120 bytes.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    let ring = match i32::try_from(ring) {
        Ok(ring) if ring >= 0 => ring,
        _ => {
            return match io::Error::last_os_error() {
                // This kernel has no io_uring, or it is switched off (sysctl kernel.io_uring_disabled).
                error
                    if [Some(libc::ENOSYS), Some(libc::EPERM)].contains(&error.raw_os_error()) =>
                {
                    Ok(None)
                }
                error => Err(error),
            };
        }
    };
    // SAFETY: a descriptor that the kernel has just made, with no other owner.
    let ring = unsafe { OwnedFd::from_raw_fd(ring) };
    let mut found = vec![0_u8; header + OPERATIONS * each];
    // SAFETY: the kernel writes no more operations than the given room.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            REGISTER_PROBE,
            found.as_mut_ptr(),
            OPERATIONS,
        )
    };
    if asked < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Some(
        found[header + operation * each + flags] & SUPPORTED != 0,
    ))
}

fn zero_copy_receive() -> Outcome {
    match ring_offers(RECEIVE_ZERO_COPY) {
        Ok(None) => Ok("io_uring is switched off".into()),
        Ok(Some(false)) => Ok("io_uring has no operation that reads a connection unseen".into()),
        Ok(Some(true)) => Err(Lack::new(
            "this kernel's io_uring has RECV_ZC, which asks no LSM program: a process with \
             CAP_NET_ADMIN that already holds a descriptor of a connection can read it so from a \
             network card set up for that; `sysctl kernel.io_uring_disabled=2` closes it",
        )),
        Err(error) => Err(Lack::new(format!(
            "io_uring cannot be asked what it offers: {error}"
        ))),
    }
}

/// The only finding that is read from the version: a look-up fails on some kernels, but only for an instant,
/// which no attempt finds (fixed by "bpf: Avoid taking spinlock in bpf_task_storage_get", kernel 6.2).
fn task_storage() -> Outcome {
    let name = rustix::system::uname();
    let (release, version) = (
        name.release().to_string_lossy(),
        name.version().to_string_lossy(),
    );
    let chosen = std::fs::read_to_string("/sys/kernel/debug/sched/preempt").ok();
    match preempted_in_lookup(&release, &version, chosen.as_deref()) {
        Some(false) => Ok("the fence finds its marks at every instant".into()),
        Some(true) => Err(Lack::new(format!(
            "kernel {release} preempts fully: a lookup in BPF task storage can fail when it \
             interrupts another, and the fence then misses a process's mark; start the kernel \
             with preempt=voluntary, or take 6.2 or later"
        ))),
        None => Err(Lack::new(format!(
            "kernel {release} may preempt fully, and /sys/kernel/debug/sched/preempt cannot be \
             read: mount debugfs, or start the kernel with preempt=voluntary, or take 6.2 or later"
        ))),
    }
}

/// Whether another task storage look-up may interrupt one and make it fail; none if only `chosen`, the
/// text of debugfs's sched/preempt ("none (voluntary) full"), could tell.
fn preempted_in_lookup(release: &str, version: &str, chosen: Option<&str>) -> Option<bool> {
    let mut numbers = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map_while(|number| number.parse::<u32>().ok());
    if (numbers.next()?, numbers.next()?) >= (6, 2) {
        return Some(false);
    }
    let words: Vec<_> = version.split_whitespace().collect();
    if words.contains(&"PREEMPT_DYNAMIC") {
        return chosen.map(|chosen| chosen.contains("(full)"));
    }
    Some(words.contains(&"PREEMPT") || words.contains(&"PREEMPT_RT"))
}

fn control_groups() -> Outcome {
    let own = cgroup::own()?;
    // The root group has no cgroup.kill; any other has it from 5.14 on.
    let is_root = cgroup::mount().is_ok_and(|mount| mount == own || own.ends_with("/"));
    if is_root || own.join("cgroup.kill").exists() {
        Ok(format!("version 2, at {}", own.display()))
    } else {
        Err(Lack::new(
            "cgroup.kill is missing (kernels from 5.14 have it)",
        ))
    }
}

fn process_descriptors() -> Outcome {
    let flags = rustix::process::PidfdFlags::empty();
    rustix::process::pidfd_open(rustix::process::getpid(), flags)?;
    Ok("pidfd_open works".into())
}

fn landlock() -> Outcome {
    match sandbox::landlock_version() {
        version @ 1.. => Ok(format!("version {version}")),
        _ => Err(Lack::new(
            "this kernel has no Landlock, or it is not among lsm=...",
        )),
    }
}

fn seccomp() -> Outcome {
    let path = "/proc/sys/kernel/seccomp/actions_avail";
    match std::fs::read_to_string(path) {
        Ok(actions) if actions.contains("errno") => Ok("filters work".into()),
        Ok(actions) => Err(Lack::new(format!(
            "the action `errno` is missing ({})",
            actions.trim()
        ))),
        Err(error) => Err(Lack::new(format!("{path}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_preemption_matters_before_6_2() {
        let dynamic = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-1 (2026-01-01)";
        for (release, version, chosen, expected) in [
            (
                "6.1.0-42-amd64",
                dynamic,
                Some("none (voluntary) full\n"),
                Some(false),
            ),
            (
                "6.1.0-42-amd64",
                dynamic,
                Some("none voluntary (full)\n"),
                Some(true),
            ),
            ("6.1.0-42-amd64", dynamic, None, None),
            (
                "6.1.0-42-rt-amd64",
                "#1 SMP PREEMPT_RT Debian",
                None,
                Some(true),
            ),
            ("6.1.0", "#1 SMP PREEMPT", None, Some(true)),
            ("6.1.0", "#1 SMP", None, Some(false)),
            (
                "6.2.0",
                dynamic,
                Some("none voluntary (full)\n"),
                Some(false),
            ),
            ("7.0-rc1", dynamic, None, Some(false)),
        ] {
            let found = preempted_in_lookup(release, version, chosen);
            assert_eq!(found, expected, "{release} {version} {chosen:?}");
        }
    }

    #[test]
    fn io_uring_says_what_it_offers() {
        const NO_OPERATION: usize = 0;
        const BEYOND_ALL: usize = 127;
        if let Some(offered) = ring_offers(NO_OPERATION).unwrap() {
            assert!(offered);
            assert_eq!(ring_offers(BEYOND_ALL).unwrap(), Some(false));
        } else {
            println!("skipped: io_uring is switched off");
        }
    }
}
