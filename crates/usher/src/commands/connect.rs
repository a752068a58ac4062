//! `usher connect HOST:SERVICE`: a pipe for scripts, tunnels and ProxyCommand.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use usher::{HostName, ServiceName, connect_by_user};
use usher_base::NameError;
use usher_system::connections::unacknowledged;

use crate::failure::{At, Failure};
use way::Way;

mod way;

/// How long the host of a server that has ended may take to acknowledge what was sent, and the interval of
/// checks.
const ANSWER: Duration = Duration::from_secs(1);
const LOOKING: Duration = Duration::from_millis(5);
/// The time after which a notice says that connecting takes long.
const SILENT: Duration = Duration::from_secs(3);

/// The destination of a connection.
#[derive(Debug, Clone)]
pub struct Destination {
    host: HostName,
    service: ServiceName,
}

impl FromStr for Destination {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let missing = || Failure::refused("give a host and a service, as in mailhost:imap");
        let (host, service) = text.split_once(':').ok_or_else(missing)?;
        Ok(Self {
            host: parse_name(host)?,
            service: parse_name(service)?,
        })
    }
}

/// Parses the name in an argument.
pub fn parse_name<N: FromStr<Err = NameError>>(text: &str) -> Result<N, Failure> {
    text.parse()
        .map_err(|error| Failure::Refused(format!("{text}: {error}")))
}

/// Connects and copies both ways until the server closes, or standard output has no reader. Urgent bytes
/// of the server keep their place among the others.
///
/// # Errors
/// When the connection is refused or breaks; the received data may then be incomplete.
pub fn run(destination: &Destination) -> Result<(), Failure> {
    let connection = {
        let _notice = Notice::of(destination);
        connect_by_user(&destination.host, &destination.service)?
    };
    let prepare = || {
        connection.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_oobinline(&connection, true)?;
        io::Result::Ok((connection.local_addr()?, connection.try_clone()?))
    };
    let (client, outgoing) = prepare().attempt("cannot prepare the connection")?;
    let sending: &'static Sending = Box::leak(Box::default());
    std::thread::spawn(move || {
        // The other direction ends the program.
        let _ = send(&outgoing, sending);
    });
    let mut received = false;
    let outcome = receive(&connection, sending, &mut received);
    let is_silent = match outcome {
        // A server that took data before an orderly end has served.
        Ok(()) => received || !sending.has_sent() || !is_taken(&connection, sending),
        Err(Stopped::Broken(_)) => true,
        Err(Stopped::Unread) => false,
    };
    if !received && is_silent {
        failed_at_once(destination, client)?;
    }
    match outcome {
        Ok(()) => Ok(()),
        Err(Stopped::Unread) => {
            // An abort tells the server that there is no reader, as if the reader had been connected itself.
            // A connection that has ended needs no abort.
            let _ = rustix::net::connect_unspec(&connection);
            Ok(())
        }
        Err(Stopped::Broken(error)) => Err(Failure::Broken(error.into())),
    }
}

/// Says on standard error that connecting takes long, unless it is dropped before.
struct Notice {
    _waiting: mpsc::Sender<()>,
}

impl Notice {
    fn of(destination: &Destination) -> Self {
        let (waiting, over) = mpsc::channel();
        let Destination { host, service } = destination.clone();
        std::thread::spawn(move || {
            if over.recv_timeout(SILENT) == Err(RecvTimeoutError::Timeout) {
                eprintln!(
                    "usher: still connecting to {host}:{service}: the host does not answer at its first \
                     address, or your ssh-agent has not signed yet"
                );
            }
        });
        Self { _waiting: waiting }
    }
}

/// Whether the server has acknowledged all that was sent. A program that dies without reading also ends the
/// connection orderly, if data reaches its host only afterwards; the host answers that data by a reset. False
/// also if no answer comes in time.
fn is_taken(connection: &TcpStream, sending: &Sending) -> bool {
    let until = Instant::now() + ANSWER;
    loop {
        if sending.has_failed() || !is_sound(connection) {
            return false;
        }
        match unacknowledged(connection) {
            Ok(0) => return true,
            Ok(_) if Instant::now() < until => std::thread::sleep(LOOKING),
            Ok(_) | Err(_) => return false,
        }
    }
}

/// Whether the connection has not been reset. Leaves the error where the other thread finds it.
fn is_sound(connection: &TcpStream) -> bool {
    let mut asked = [PollFd::new(connection, PollFlags::empty())];
    let polled = retry_on_intr(|| poll(&mut asked, Some(&Timespec::default())));
    polled.is_ok() && !asked[0].revents().contains(PollFlags::ERR)
}

/// Fails if the server says that the service's program has failed at once. A signer that does not answer
/// changes nothing: then the connection's end is all that is known.
fn failed_at_once(destination: &Destination, client: SocketAddr) -> Result<(), Failure> {
    let Destination { host, service } = destination;
    match usher::how_ended(host, service, client) {
        Ok(Some(end)) => Err(Failure::ProgramFailed {
            host: host.clone(),
            service: service.clone(),
            end,
        }),
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Whether the other thread is writing to the connection, and the error that it met. The kernel reports
/// a reset once, to one of the two threads; the other then sees an ordinary end.
#[derive(Default)]
struct Sending {
    state: Mutex<Writing>,
    changed: Condvar,
    /// Something was sent.
    has_sent: AtomicBool,
}

#[derive(Default)]
enum Writing {
    #[default]
    Not,
    Now,
    Failed(Errno),
}

impl Sending {
    fn set(&self, writing: Writing) {
        *self.state.lock() = writing;
        self.changed.notify_all();
    }

    fn has_sent(&self) -> bool {
        self.has_sent.load(Ordering::SeqCst)
    }

    /// Returns whether writing has failed by now.
    fn has_failed(&self) -> bool {
        matches!(*self.state.lock(), Writing::Failed(_))
    }

    /// The error of writing, after it has finished.
    fn failure(&self) -> Option<Errno> {
        let now = |state: &mut Writing| matches!(state, Writing::Now);
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, now);
        match *state {
            Writing::Failed(error) => Some(error),
            Writing::Not | Writing::Now => None,
        }
    }
}

/// Sends standard input and its end.
fn send(connection: &TcpStream, sending: &Sending) -> rustix::io::Result<()> {
    let input = io::stdin();
    let mut way = Way::of(input.as_fd());
    loop {
        wait(&mut [PollFd::new(&input, PollFlags::IN)])?;
        sending.set(Writing::Now);
        let moved = way.carry(input.as_fd(), connection.as_fd());
        if moved.is_ok_and(|count| count > 0) {
            sending.has_sent.store(true, Ordering::SeqCst);
        }
        sending.set(match moved {
            Err(error) if error != Errno::AGAIN => Writing::Failed(error),
            _ => Writing::Not,
        });
        match moved {
            Ok(0) => return rustix::net::shutdown(connection, rustix::net::Shutdown::Write),
            Ok(_) => {}
            Err(Errno::AGAIN) => wait(&mut [PollFd::new(connection, PollFlags::OUT)])?,
            Err(error) => return Err(error),
        }
    }
}

/// The reason why receiving has stopped.
enum Stopped {
    /// The received data may be incomplete.
    Broken(Errno),
    /// Standard output has no reader.
    Unread,
}

/// Copies received data to standard output until the end.
fn receive(connection: &TcpStream, sending: &Sending, received: &mut bool) -> Result<(), Stopped> {
    let output = io::stdout();
    let output = output.as_fd();
    let mut way = Way::of(output);
    loop {
        let mut waiting = [
            PollFd::new(connection, PollFlags::IN),
            // Reports a pipe without a reader.
            PollFd::from_borrowed_fd(output, PollFlags::empty()),
        ];
        wait(&mut waiting).map_err(Stopped::Broken)?;
        if waiting[1].revents().contains(PollFlags::ERR) {
            return Err(Stopped::Unread);
        }
        let carried = match way.carry(connection.as_fd(), output) {
            // splice(2) also returns 0 in front of an urgent byte.
            Ok(0) => Way::memory().carry(connection.as_fd(), output),
            other => other,
        };
        match carried {
            Ok(0) => break,
            Ok(_) => *received = true,
            Err(Errno::AGAIN) => {
                let mut full = [PollFd::from_borrowed_fd(output, PollFlags::OUT)];
                wait(&mut full).map_err(Stopped::Broken)?;
            }
            Err(Errno::PIPE) => return Err(Stopped::Unread),
            Err(error) => return Err(Stopped::Broken(error)),
        }
    }
    if !is_over(connection).map_err(Stopped::Broken)? {
        return Ok(());
    }
    match sending.failure() {
        // EPIPE: the server ended its direction, and then refused what we sent.
        Some(error) if error != Errno::PIPE => Err(Stopped::Broken(error)),
        _ => Ok(()),
    }
}

/// Whether the connection has ended in both directions, so that no write to it waits.
fn is_over(connection: &TcpStream) -> rustix::io::Result<bool> {
    let mut asked = [PollFd::new(connection, PollFlags::empty())];
    retry_on_intr(|| poll(&mut asked, Some(&Timespec::default())))?;
    Ok(asked[0].revents().contains(PollFlags::HUP))
}

fn wait(waiting: &mut [PollFd<'_>]) -> rustix::io::Result<()> {
    retry_on_intr(|| poll(waiting, None)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::Destination;

    #[test]
    fn a_destination_is_host_and_service() {
        assert!("mailhost:imap".parse::<Destination>().is_ok());
        for wrong in ["mailhost", ":imap", "mailhost:", "mail host:imap", ""] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
    }
}
