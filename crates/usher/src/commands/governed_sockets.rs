//! Warnings of `policy check` and `policy apply` about running programs with sockets of protocols that cannot
//! be protected. Once an `application` block governs a program, whatever the block demands, the program gets
//! no such sockets, and calls on its present ones fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::net::sockopt::socket_protocol;
use rustix::net::{getpeername, getsockname};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use usher_local::applied::Applied;
use usher_local::paths;
use usher_policy::Policy;
use usher_policy::protection::{Application, Names, Traffic};

use super::governed_scripts::files;
use super::warning::Warning;

/// The protocols, by the kernel's numbers. The same as `is_refused` of bpf/ipsec/sockets.h.
const REFUSED: [(u32, &str); 3] = [(132, "SCTP"), (256, "SMC"), (262, "MPTCP")];

/// UDP and UDP-Lite.
const DATAGRAMS: [u32; 2] = [17, 136];

/// Limit of descriptors of a process that are looked at: users choose how many it has.
pub const MOST_DESCRIPTORS: usize = 65_536;

/// A file, by device and inode.
type File = (u64, u64);

/// Warnings about programs that the policy names and that hold sockets of [`REFUSED`] now, and about programs
/// that hold datagram sockets which they have connected before a block governs them. Processes that this one
/// may not look at are left out.
pub fn that_cannot_be_protected(policy: &Policy) -> Vec<Warning> {
    let named = named(policy);
    // Without a block no process is looked for.
    let processes = if named.is_empty() {
        Vec::new()
    } else {
        processes()
    };
    let in_force = in_force();
    let names = Names::default();
    let mut warnings = Vec::new();
    for (process, file) in processes {
        let Some((block, path)) = named.get(&file) else {
            continue;
        };
        let place = &block.origin.place;
        let held = held_by(process);
        if !held.protocols.is_empty() {
            let protocols: Vec<&str> = held.protocols.into_iter().collect();
            let protocols = protocols.join(" and ");
            let text = format!(
                "{place}: {path} (pid {process}) holds sockets of {protocols}, which cannot be protected: its \
                 calls on them fail (EPERM) while this block is in force; restart it then, so that it takes \
                 TCP (servers in Go 1.24 or later listen by MPTCP where they can)"
            );
            warnings.push(Warning::from(text));
        }
        // The protector knows the datagram sockets of programs that are governed already.
        let is_new = !in_force.contains(&file);
        let deciding = block.deciding(&names);
        let is_protected = |(own, peer): &&(SocketAddr, SocketAddr)| {
            let (traffic, _) = deciding.traffic(peer.ip(), own.port(), peer.port());
            matches!(traffic, Traffic::Protect(_))
        };
        let mut connected = held.connected.iter().filter(is_protected);
        if let Some((_, peer)) = connected.next().filter(|_| is_new) {
            let more = match connected.count() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let text = format!(
                "{place}: {path} (pid {process}) has connected a datagram socket to {peer}{more} before this \
                 block governs it: once that traffic is protected sends on it fail (EPERM) for the moment \
                 until `usher policy apply` has marked it; restart a program that does not take that"
            );
            warnings.push(Warning::from(text));
        }
    }
    warnings
}

/// The files that a policy names now, each with its block and its path.
fn named(policy: &Policy) -> BTreeMap<File, (&Application, String)> {
    let mut named = BTreeMap::new();
    for block in &policy.applications {
        for path in block.programs.iter().flat_map(files) {
            if let Ok(found) = fs::metadata(&path) {
                let file: File = (found.dev(), found.ino());
                named.entry(file).or_insert((block, path));
            }
        }
    }
    named
}

/// The files that the policy in force names now; none if it cannot be read.
fn in_force() -> BTreeSet<File> {
    let stored = Applied::load(Path::new(paths::APPLIED)).ok().flatten();
    let checked = stored.and_then(|stored| stored.check().ok());
    checked.map_or_else(BTreeSet::new, |checked| {
        named(&checked.policy).into_keys().collect()
    })
}

/// The numbers of all processes.
pub fn all_processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// All processes, each with the file that it executes.
fn processes() -> Vec<(i32, File)> {
    let processes = all_processes().filter_map(|process| {
        let executed = fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((process, (executed.dev(), executed.ino())))
    });
    processes.collect()
}

/// The sockets of a process that matter here.
#[derive(Default)]
struct Held {
    /// The protocols of sockets that cannot be protected.
    protocols: BTreeSet<&'static str>,
    /// The endpoints of datagram sockets that are connected.
    connected: Vec<(SocketAddr, SocketAddr)>,
}

fn held_by(process: i32) -> Held {
    let mut found = Held::default();
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
        let Ok(socket) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let Ok(Some(protocol)) = socket_protocol(&socket) else {
            continue;
        };
        let number = protocol.as_raw().get();
        let refused = REFUSED.iter().find(|(refused, _)| *refused == number);
        found.protocols.extend(refused.map(|(_, name)| name));
        if DATAGRAMS.contains(&number) {
            found.connected.extend(ends(&socket));
        }
    }
    found
}

/// The endpoints of a connected IP socket.
fn ends(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let own = getsockname(socket).ok()?;
    let peer = getpeername(socket).ok()??;
    Some((own.try_into().ok()?, peer.try_into().ok()?))
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
        let policy =
            usher_policy::parse_policy(&[Source { name, text }]).expect("a correct policy");
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

    #[test]
    fn a_program_that_has_connected_a_datagram_socket_is_named() {
        let own = std::env::current_exe().expect("the test program");
        let own = own.to_str().expect("a path of text");
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
        // Connecting a datagram socket sends nothing.
        if let Err(error) = socket.connect("192.0.2.9:9") {
            println!("skipped: no route to other hosts: {error}");
            return;
        }
        let warnings = |network: &str| {
            let text = format!(
                "application {own} {{ network {network} protected P; network 0.0.0.0/0 trusted; protection \
                 P {{ localport=any remoteport=any encryption optional; }} }}"
            );
            let name = "a.policy".into();
            let policy =
                usher_policy::parse_policy(&[Source { name, text }]).expect("a correct policy");
            with_places(that_cannot_be_protected(&policy), &Applied::default())
        };
        let named = |warnings: &[String]| {
            warnings
                .iter()
                .any(|one| one.contains("has connected a datagram"))
        };
        assert!(named(&warnings("192.0.2.0/24")));
        assert!(!named(&warnings("198.51.100.0/24")), "a trusted peer");
        drop(socket);
        assert!(!named(&warnings("192.0.2.0/24")));
    }
}
