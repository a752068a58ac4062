//! Workers' standard error. It is never the keeper's own stream, because a writer there could forge
//! the keeper's messages. Each user has a journal stream for each service, with an identifier of its
//! own; the journal adds the user id and the process, as reported by the kernel. A user who shuts the
//! stream down affects no other user.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use usher_base::ServiceName;

/// The socket at which the journal accepts streams (systemd-journald.service(8)).
const JOURNAL: &str = "/run/systemd/journal/stdout";

/// A user's stream at a service. It is made when the first worker starts, and again after it was shut
/// down.
#[derive(Debug, Default)]
pub struct Output(Mutex<Option<Arc<OwnedFd>>>);

impl Output {
    /// Standard error of the next worker; none if there is no journal, or if it accepts no stream now.
    /// Does not block.
    pub fn stream(&self, service: &ServiceName) -> Option<Arc<OwnedFd>> {
        let mut present = self.0.lock();
        if present.as_ref().is_some_and(is_shut_down) {
            *present = None;
        }
        if present.is_none() {
            match open_output(service) {
                Ok(stream) => *present = Some(Arc::new(stream)),
                Err(error) => complain(service, &error),
            }
        }
        present.clone()
    }
}

fn is_shut_down(stream: &Arc<OwnedFd>) -> bool {
    let mut asked = [PollFd::new(stream, PollFlags::empty())];
    let answered = rustix::event::poll(&mut asked, Some(&Timespec::default()));
    let gone = PollFlags::HUP | PollFlags::ERR;
    answered.is_err() || asked[0].revents().intersects(gone)
}

/// Opens a stream in the way of sd_journal_stream_fd(3). The journal ignores priorities in the lines,
/// because a line of the highest priority goes to all terminals.
fn open_output(service: &ServiceName) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(JOURNAL)?)?;
    rustix::net::shutdown(&stream, Shutdown::Read)?;
    // Identifier, unit (which the journal finds by the process), priority (informational), no
    // priorities in lines, not to syslog, not to the kernel's log, not to the console.
    let header = format!("usher-{service}\n\n6\n0\n0\n0\n0\n");
    let sent = rustix::net::send(stream.as_fd(), header.as_bytes(), SendFlags::NOSIGNAL)?;
    if sent != header.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    rustix::io::ioctl_fionbio(&stream, false)?;
    Ok(stream)
}

fn complain(service: &ServiceName, error: &io::Error) {
    static NO_JOURNAL: Once = Once::new();
    if error.kind() == io::ErrorKind::NotFound {
        NO_JOURNAL.call_once(|| {
            tracing::info!(
                "there is no journal at {JOURNAL}: what workers write to standard error is lost"
            );
        });
    } else {
        tracing::warn!(%service, %error,
            "the journal takes no stream: what workers write to standard error is lost");
    }
}
