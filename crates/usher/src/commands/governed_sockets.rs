//! Warnings of `policy check` and `policy apply` about programs that run already and hold sockets of
//! protocols that cannot be protected, which governed programs do not get: their calls on these fail
//! once an `application` block governs them, whatever it demands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::net::sockopt::socket_protocol;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use usher_policy::Policy;

use super::governed_scripts::files;
use super::warning::Warning;

/// The protocols, by the kernel's numbers. The same as `is_refused` of bpf/ipsec/sockets.h.
const REFUSED: [(u32, &str); 3] = [(132, "SCTP"), (256, "SMC"), (262, "MPTCP")];

/// Most descriptors of a process that are looked at: users choose how many it has.
const MOST_DESCRIPTORS: usize = 65_536;

/// A file, by device and inode.
type File = (u64, u64);

/// Programs that the policy names and that hold such sockets now. Processes that this one may not look at
/// are left out.
pub fn that_cannot_be_protected(policy: &Policy) -> Vec<Warning> {
    let mut named = BTreeMap::new();
    for block in &policy.applications {
        for path in block.programs.iter().flat_map(files) {
            if let Ok(found) = fs::metadata(&path) {
                let file: File = (found.dev(), found.ino());
                named.entry(file).or_insert((&block.origin.place, path));
            }
        }
    }
    // Without a block nobody is looked for.
    let processes = match named.is_empty() {
        true => Vec::new(),
        false => processes(),
    };
    let mut warnings = Vec::new();
    for (process, file) in processes {
        let Some((place, path)) = named.get(&file) else {
            continue;
        };
        let protocols: Vec<&str> = protocols_of(process).into_iter().collect();
        if !protocols.is_empty() {
            let protocols = protocols.join(" and ");
            let text = format!(
                "{place}: {path} (pid {process}) holds sockets of {protocols}, which cannot be protected: its \
                 calls on them fail (EPERM) while this block is in force; restart it then, so that it takes \
                 TCP (servers in Go 1.24 or later listen by MPTCP where they can)"
            );
            warnings.push(Warning::from(text));
        }
    }
    warnings
}

/// All processes, each with the file that it executes.
fn processes() -> Vec<(i32, File)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let executed = fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((process, (executed.dev(), executed.ino())))
    });
    processes.collect()
}

/// The protocols of the process's sockets that cannot be protected.
fn protocols_of(process: i32) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let opened = Pid::from_raw(process).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let (Some(Ok(pidfd)), Ok(entries)) = (opened, fs::read_dir(format!("/proc/{process}/fd")))
    else {
        return found;
    };
    for entry in entries.flatten().take(MOST_DESCRIPTORS) {
        let is_socket = |link: std::path::PathBuf| link.to_string_lossy().starts_with("socket:");
        let name = entry.file_name();
        let (Some(Ok(number)), true) = (
            name.to_str().map(str::parse),
            fs::read_link(entry.path()).is_ok_and(is_socket),
        ) else {
            continue;
        };
        let socket = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty());
        let protocol = socket.and_then(|socket| socket_protocol(&socket));
        if let Ok(Some(protocol)) = protocol {
            let number = protocol.as_raw().get();
            let refused = REFUSED.iter().find(|(refused, _)| *refused == number);
            found.extend(refused.map(|(_, name)| name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use rustix::net::{AddressFamily, Protocol, SocketType, socket};
    use usher_local::applied::Applied;
    use usher_policy::Source;

    use super::*;
    use crate::commands::warning::with_places;

    #[test]
    fn a_program_that_holds_a_socket_of_mptcp_is_named() {
        let own = std::env::current_exe().expect("the test program");
        let own = own.to_str().expect("a path of text");
        let text = format!("application {own} {{ network 0.0.0.0/0 trusted; }}");
        let name = "a.policy".into();
        let policy = usher_policy::parse(&[Source { name, text }]).expect("a correct policy");
        let warnings = || with_places(that_cannot_be_protected(&policy), &Applied::default());
        let make = |protocol| {
            let protocol = NonZeroU32::new(protocol).map(Protocol::from_raw);
            socket(AddressFamily::INET, SocketType::STREAM, protocol).expect("a socket")
        };
        let _protectable = make(6);
        assert_eq!(warnings(), [""; 0]);
        let _refused = make(262);
        let warnings = warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let pid = std::process::id();
        let said = format!("a.policy:1:1: {own} (pid {pid}) holds sockets of MPTCP, which cannot");
        assert!(warnings[0].starts_with(&said), "{warnings:?}");
    }
}
