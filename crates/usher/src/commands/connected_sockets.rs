//! Gives datagram sockets that programs have connected before a policy the marks that it demands. No program
//! in the kernel can: it takes a call on the socket itself (SO_MARK), by a process that has it. A daemon would
//! need CAP_SYS_PTRACE for that, so `usher policy apply` does it with the rights of the administrator who runs
//! it: by a duplicate (pidfd_getfd(2)) of each such socket that the protector lists.
//!
//! It never chooses a mark: it clears Usher's bits, and the monitor replaces that by the mark which the policy in
//! force demands for this very socket (`needed_mark` in bpf/ipsec/monitor.bpf.c). A socket that is no longer
//! governed is left without. So a wrong socket would lose nothing.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use rustix::net::sockopt::socket_cookie;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use usher_daemon::control::{ControlError, ask_daemon};
use usher_local::applied::Applied;
use usher_local::requests::{Sockets, SocketsView};
use usher_local::roles;
use usher_policy::Policy;

use super::governed_sockets::{MOST_DESCRIPTORS, all_processes};

/// The cookies of connected datagram sockets of governed programs.
#[derive(Debug, Default)]
pub struct Connected(BTreeSet<u64>);

/// How long the next policy waits for a list of those of the present one: users choose how long it takes to look
/// through all descriptors. Without it they keep their marks, and are protected as long as they last.
const PATIENCE: Duration = Duration::from_secs(3);

impl Connected {
    /// Those of the policy in force, which another one is about to replace.
    pub fn of_former(former: &Applied) -> Self {
        let checked = former.check();
        if checked.is_ok_and(|checked| checked.policy.applications.is_empty()) {
            return Self::default();
        }
        let (found, list) = mpsc::channel();
        std::thread::spawn(move || found.send(Self::now()));
        list.recv_timeout(PATIENCE).unwrap_or_default()
    }

    /// Those of the policy in force. None if no protector answers: `usher policy apply` says so itself, as it
    /// does of the sockets that keep their marks.
    fn now() -> Self {
        let mut connected = Self::default();
        let page = |after| {
            let most = SocketsView::MOST;
            ask_daemon(roles::Protector, &Sockets { after, most })
        };
        // What was gathered before an error is worth as much.
        let _error = connected.gather(page);
        connected
    }

    fn gather(
        &mut self,
        mut page: impl FnMut(u64) -> Result<SocketsView, ControlError>,
    ) -> Result<(), ControlError> {
        let mut next = Some(0);
        while let Some(after) = next {
            let page = page(after)?;
            for socket in page.sockets {
                if socket.protocol == "udp" && socket.peer.is_some() {
                    self.0.insert(socket.cookie);
                }
            }
            next = page.next;
        }
        Ok(())
    }
}

/// Marks the connected datagram sockets that a policy governs since it has come in force, and those that the
/// former one governed, `former`. The protector has looked at them again by then.
pub fn mark(policy: &Policy, former: Connected) {
    let Connected(mut cookies) = former;
    if !policy.applications.is_empty() {
        cookies.extend(Connected::now().0);
    }
    if cookies.is_empty() {
        return;
    }
    let bits = policy.marks.bits();
    let mut has_changed = false;
    // The protector knows processes by the numbers of the initial namespace, which may not be those of /proc.
    for process in all_processes() {
        if cookies.is_empty() {
            break;
        }
        has_changed |= mark_of_process(process, &mut cookies, bits);
    }
    if has_changed && !policy.applications.is_empty() {
        Connected::now();
    }
}

/// Marks the sockets with these cookies that a process holds, and takes these off. Returns whether a mark has
/// changed. A socket that cannot be marked stays as it is, and the protector names its process.
fn mark_of_process(process: i32, cookies: &mut BTreeSet<u64>, bits: u32) -> bool {
    let opened = Pid::from_raw(process).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let (Some(Ok(pidfd)), Ok(entries)) = (opened, fs::read_dir(format!("/proc/{process}/fd")))
    else {
        return false;
    };
    let mut has_changed = false;
    for entry in entries.flatten().take(MOST_DESCRIPTORS) {
        if cookies.is_empty() {
            break;
        }
        let is_socket = fs::read_link(entry.path())
            .is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
        let name = entry.file_name();
        let Some(number) = name
            .to_str()
            .and_then(|name| name.parse().ok())
            .filter(|_| is_socket)
        else {
            continue;
        };
        let Ok(socket) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        if socket_cookie(&socket).is_ok_and(|cookie| cookies.remove(&cookie)) {
            has_changed |= clear_bits(&socket, bits).unwrap_or(false);
        }
    }
    has_changed
}

/// Clears these bits of a socket's mark, which the monitor may set again. Returns whether the mark has changed.
fn clear_bits(socket: &OwnedFd, bits: u32) -> nix::Result<bool> {
    let mark = || getsockopt(&socket.as_fd(), sockopt::Mark);
    let before = mark()?;
    setsockopt(&socket.as_fd(), sockopt::Mark, &(before & !bits))?;
    Ok(mark()? != before)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn only_the_listed_sockets_of_a_process_are_marked() {
        let sockets = [(), ()].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        let mark = |socket: &UdpSocket| getsockopt(&socket.as_fd(), sockopt::Mark).expect("a mark");
        for socket in &sockets {
            if let Err(error) = setsockopt(socket, sockopt::Mark, &0x7500_0001) {
                println!("skipped: needs CAP_NET_ADMIN: {error}");
                return;
            }
        }
        let cookie = socket_cookie(&sockets[0]).expect("a cookie");
        let own = i32::try_from(std::process::id()).expect("a process id");
        let marked = || mark_of_process(own, &mut BTreeSet::from([cookie]), 0x7500_0000);
        assert!(marked());
        assert_eq!(sockets.each_ref().map(mark), [1, 0x7500_0001]);
        assert!(!marked(), "it has its mark");
        assert!(!mark_of_process(i32::MAX, &mut BTreeSet::from([cookie]), 1));
    }
}
