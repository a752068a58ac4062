//! Gives datagram sockets that programs connected before a policy came in force the marks that the policy
//! demands. No kernel program can do this: it takes a call on the socket itself (SO_MARK), by a process that
//! holds the socket. A daemon would need CAP_SYS_PTRACE, so `usher policy apply` does it with the rights of
//! the administrator who runs it: by a duplicate (pidfd_getfd(2)) of each such socket that the protector
//! lists.
//!
//! This module never chooses a mark: it clears Usher's bits, and the monitor sets the mark that the policy in
//! force demands for this very socket (`needed_mark` in bpf/ipsec/monitor.bpf.c). A socket that no block
//! governs any more gets no mark. So a wrong socket would lose nothing.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use rustix::net::sockopt::socket_cookie;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use usher_daemon::control::{ControlError, ask_daemon};
use usher_local::applied::Applied;
use usher_local::requests::{Sockets, SocketsView};
use usher_local::roles;
use usher_policy::Policy;

use super::governed_sockets::{MOST_DESCRIPTORS, all_processes};
use crate::output::warn;

/// The cookies of connected datagram sockets of governed programs.
#[derive(Debug, Default)]
pub struct Connected(BTreeSet<u64>);

/// How long the next policy waits for the list of sockets under the present one: users can make the search
/// through all descriptors long. Sockets that are not listed keep their marks, and stay protected as long as
/// they last.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long marking may take: half of it to list the sockets, and half to find them.
const MARKING: Duration = Duration::from_secs(10);

/// Limit of the pages of one list, of [`SocketsView::MOST`] sockets each: 1,048,576 sockets. New sockets are
/// on later pages, so a user who makes them faster than the protector lists them would never let the list
/// end.
const MOST_PAGES: usize = 256;

impl Connected {
    /// The sockets under the policy in force, which another one is about to replace.
    pub fn of_former(former: &Applied) -> Self {
        let checked = former.check();
        if checked.is_ok_and(|checked| checked.policy.applications.is_empty()) {
            return Self::default();
        }
        let end = Instant::now() + PATIENCE / 2;
        within(PATIENCE, move || Self::now(end).0).unwrap_or_default()
    }

    /// The sockets under the policy in force that can be listed until `end`, and whether these are all.
    /// Returns no sockets if no protector answers: `usher policy apply` reports that itself, and also the
    /// sockets that keep their marks.
    fn now(end: Instant) -> (Self, bool) {
        let mut connected = Self::default();
        let page = |after| {
            let most = SocketsView::MOST;
            ask_daemon(roles::Protector, &Sockets { after, most })
        };
        // Sockets that were gathered before an error count, too.
        let is_complete = connected.gather(end, page).unwrap_or(true);
        (connected, is_complete)
    }

    /// Adds the sockets of all pages, until `end`. Returns whether the list is complete.
    fn gather(
        &mut self,
        end: Instant,
        mut page: impl FnMut(u64) -> Result<SocketsView, ControlError>,
    ) -> Result<bool, ControlError> {
        let mut next = 0;
        for _ in 0..MOST_PAGES {
            let page = page(next)?;
            for socket in page.sockets {
                if socket.protocol == "udp" && socket.peer.is_some() {
                    self.0.insert(socket.cookie);
                }
            }
            match page.next {
                Some(after) if Instant::now() < end => next = after,
                more => return Ok(more.is_none()),
            }
        }
        Ok(false)
    }
}

/// The result of `work`; none if it takes longer than `patience`. The work is then abandoned: this process
/// ends soon.
fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    result.recv_timeout(patience).ok()
}

/// Marks the connected datagram sockets that the policy governs since it came in force, and those of
/// `former`, which the former policy governed. To be called when the protector has looked at both again.
/// Users choose how many sockets there are, so marking ends after [`MARKING`], with a warning about sockets
/// that may keep their marks.
pub fn mark(policy: &Policy, former: Connected) {
    let (is_governing, bits) = (!policy.applications.is_empty(), policy.marks.bits());
    if !is_governing && former.0.is_empty() {
        return;
    }
    let end = Instant::now() + MARKING;
    let marked = within(MARKING, move || mark_until(end, former, is_governing, bits));
    if marked != Some(true) {
        warn(&format!(
            "cannot look at all sockets within {} s, as users have too many: datagram sockets that were \
             connected before may keep their former mark; `usher protection show` names their programs. \
             End those, or try again by `usher policy apply`",
            MARKING.as_secs()
        ));
    }
}

/// As [`mark`]. Returns whether all sockets were looked at in time.
fn mark_until(end: Instant, former: Connected, is_governing: bool, bits: u32) -> bool {
    let Connected(mut cookies) = former;
    let mut is_complete = true;
    if is_governing {
        let (present, is_all) = Connected::now(Instant::now() + MARKING / 2);
        cookies.extend(present.0);
        is_complete = is_all;
    }
    let mut has_changed = false;
    // The protector knows processes by the numbers of the initial namespace, which may not be those of /proc.
    for process in all_processes() {
        if cookies.is_empty() {
            break;
        }
        if Instant::now() >= end {
            return false;
        }
        has_changed |= mark_of_process(process, &mut cookies, bits);
    }
    if has_changed && is_governing {
        // Listing makes the protector look at the sockets again.
        Connected::now(end);
    }
    is_complete
}

/// Marks the sockets with these cookies that a process holds, and removes their cookies. Returns whether a
/// mark has changed. A socket that cannot be marked stays as it is, and the protector names its process.
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

    use usher_local::requests::{SocketView, TreatmentView};

    use super::*;

    /// A page of one connected socket, and after it another page if there is one.
    fn page(cookie: u64, next: Option<u64>) -> SocketsView {
        let address = ([192, 0, 2, 1], 1).into();
        let socket = SocketView {
            cookie,
            program: "/bin/true".into(),
            uid: 0,
            process: 1,
            holders: 1,
            protocol: "udp".into(),
            state: None,
            local: address,
            peer: Some(address),
            treatment: TreatmentView::EachPacket,
            line: None,
            sa_out: None,
            sa_in: None,
        };
        SocketsView {
            sockets: vec![socket],
            total: 1,
            next,
        }
    }

    // Threat model: P83
    #[test]
    fn a_list_that_never_ends_is_left() {
        let far = Instant::now() + Duration::from_secs(3600);
        let (mut connected, mut pages) = (Connected::default(), 0);
        let endless = |after: u64| {
            pages += 1;
            assert!(pages < 10_000, "this never ends");
            Ok(page(after + 1, Some(after + 1)))
        };
        assert!(!connected.gather(far, endless).unwrap());
        assert_eq!(connected.0.len(), MOST_PAGES);
        // Also when each page takes long.
        let (mut connected, mut pages) = (Connected::default(), 0);
        let slow = |after: u64| {
            pages += 1;
            assert!(pages < 2, "its time is over");
            Ok(page(after + 1, Some(after + 1)))
        };
        assert!(!connected.gather(Instant::now(), slow).unwrap());
        // A list that ends is read to its end.
        let mut connected = Connected::default();
        let short = |after: u64| Ok(page(after + 1, (after < 2).then_some(after + 1)));
        assert!(connected.gather(far, short).unwrap());
        assert_eq!(connected.0, BTreeSet::from([1, 2, 3]));
    }

    // Threat model: P83
    #[test]
    fn work_that_never_ends_is_left() {
        let endless = || loop {
            std::thread::park();
        };
        assert_eq!(within::<()>(Duration::from_millis(10), endless), None);
        assert_eq!(within(Duration::from_secs(3600), || 1), Some(1));
    }

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
