//! Attempts: after which failures a connection is tried again, where, and how long.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::ConnectError;

/// How long to wait for a daemon that is being restarted, and the pauses between attempts: doubled from the
/// first to the longest, because an attempt at another host takes an element of the user's hash chain.
pub(super) const RESTART: Duration = Duration::from_secs(5);
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(640));

/// The addresses to which there was no way, each with the reason.
#[derive(Default)]
pub(super) struct Tried(RefCell<Vec<(SocketAddr, Errno)>>);

impl Tried {
    pub(super) fn has(&self, server: SocketAddr) -> bool {
        self.0.borrow().iter().any(|(tried, _)| *tried == server)
    }

    /// If this error means that the address is unreachable, notes it and returns true.
    pub(super) fn note(&self, server: SocketAddr, error: &io::Error) -> bool {
        let no_way = no_way(error);
        self.0
            .borrow_mut()
            .extend(no_way.map(|errno| (server, errno)));
        no_way.is_some()
    }

    pub(super) fn error(&self) -> ConnectError {
        let tried = self.0.borrow();
        let ways = tried
            .iter()
            .map(|(server, errno)| format!("{server} ({})", io::Error::from(*errno)));
        let last = tried.last().map_or(Errno::HOSTUNREACH, |(_, errno)| *errno);
        ConnectError::Unreachable {
            ways: ways.collect::<Vec<_>>().join(", "),
            errno: last.raw_os_error(),
        }
    }
}

/// Waits for a listener of the server, or for the signer, if it is being restarted. A granted connection that
/// is refused is announced and tried again, and so is a request during which the signer has gone: nothing was
/// sent to the service then. `pause` waits, and returns whether there may be another attempt. If there is no
/// way to an address, the signer names another one, until it has no more.
pub(super) fn outlast_restart<T>(
    first: Result<T, ConnectError>,
    again: impl Fn() -> Result<T, ConnectError>,
    mut pause: impl FnMut() -> bool,
) -> Result<T, ConnectError> {
    let mut outcome = first;
    loop {
        let failed = match outcome {
            Err(ConnectError::Connect(error)) if is_refused(&error) => ConnectError::NotListening,
            Err(ConnectError::Connect(error)) if no_way(&error).is_some() => {
                outcome = again();
                continue;
            }
            Err(ConnectError::NoSigner(error)) if has_gone(&error) => ConnectError::NoSigner(error),
            outcome => return outcome,
        };
        if !pause() {
            return Err(failed);
        }
        outcome = again();
    }
}

/// The error of a conversation whose other end has ended.
pub(super) fn has_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// The error that means that there is no way to an address, or that it is silent.
pub(super) fn no_way(error: &io::Error) -> Option<Errno> {
    if error.raw_os_error().is_none() && error.kind() == io::ErrorKind::TimedOut {
        return Some(Errno::TIMEDOUT);
    }
    let errno = Errno::from_raw_os_error(error.raw_os_error()?);
    [
        Errno::TIMEDOUT,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::HOSTDOWN,
    ]
    .contains(&errno)
    .then_some(errno)
}

pub(super) fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// Pauses between attempts, for this long in all.
pub(super) fn patience(limit: Duration) -> impl FnMut() -> bool {
    let until = Instant::now() + limit;
    let mut next = RETRY.0;
    move || {
        let has_time = Instant::now() + next < until;
        if has_time {
            std::thread::sleep(next);
            next = (next * 2).min(RETRY.1);
        }
        has_time
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use rustix::net::AddressFamily;
    use usher_proto::refusal::Refusal;

    use super::*;
    use crate::connect::sockets::socket_of;

    #[test]
    fn a_granted_connection_that_is_refused_is_tried_again() {
        // Bound and not listening: no other process can take the port meanwhile.
        let server = socket_of(AddressFamily::INET).unwrap();
        rustix::net::bind(&server, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = rustix::net::getsockname(&server).unwrap();
        let address = SocketAddr::try_from(address).unwrap();
        let attempts = std::cell::Cell::new(0);
        let attempt = || {
            attempts.set(attempts.get() + 1);
            TcpStream::connect(address).map_err(ConnectError::Connect)
        };
        let mut pauses = 0;
        let over = outlast_restart(attempt(), attempt, || {
            pauses += 1;
            pauses < 3
        });
        assert!(matches!(over, Err(ConnectError::NotListening)), "{over:?}");
        assert_eq!((attempts.take(), pauses), (3, 3));
        assert_eq!(ConnectError::NotListening.errno(), libc::EAGAIN);
        let listens = || rustix::net::listen(&server, 1).is_ok();
        outlast_restart(attempt(), attempt, listens).unwrap();
        assert_eq!(attempts.take(), 2);
        // Other failures and refusals are final.
        let refused = || Err::<(), _>(ConnectError::Refused(Refusal::ClientPolicy));
        let attempt = || panic!("tries again");
        let over = outlast_restart(refused(), attempt, || panic!("waits"));
        assert!(matches!(over, Err(ConnectError::Refused(_))), "{over:?}");
    }

    #[test]
    fn a_signer_that_goes_while_it_is_asked_is_asked_again() {
        let gone = || ConnectError::NoSigner(io::ErrorKind::UnexpectedEof.into());
        let attempts = std::cell::Cell::new(0);
        let again = || {
            attempts.set(attempts.get() + 1);
            (attempts.get() == 2).then_some(7).ok_or_else(gone)
        };
        let answered = outlast_restart(again(), again, || true);
        assert_eq!(answered.unwrap(), 7);
        let over = outlast_restart(again(), again, || false);
        assert!(matches!(over, Err(ConnectError::NoSigner(_))), "{over:?}");
        assert_eq!(attempts.get(), 3);
        // A signer that hangs is not waited for.
        let hangs = || Err::<(), _>(ConnectError::NoSigner(io::ErrorKind::WouldBlock.into()));
        let over = outlast_restart(hangs(), || panic!("tries again"), || panic!("waits"));
        assert!(matches!(over, Err(ConnectError::NoSigner(_))), "{over:?}");
    }

    #[test]
    fn after_an_address_without_a_way_the_next_is_tried() {
        let servers = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|ip| SocketAddr::from((ip, 143)));
        let tried = Tried::default();
        let attempt = |errors: &[(SocketAddr, Errno)]| {
            let errors = std::cell::RefCell::new(errors.iter().copied());
            let again = || {
                let (server, errno) = errors.borrow_mut().next().ok_or_else(|| tried.error())?;
                let error = io::Error::from(errno);
                tried.note(server, &error);
                Err::<(), _>(ConnectError::Connect(error))
            };
            outlast_restart(again(), again, || panic!("waits")).unwrap_err()
        };
        let [first, second] = servers;
        let all = attempt(&[(first, Errno::TIMEDOUT), (second, Errno::HOSTUNREACH)]);
        assert_eq!(all.errno(), libc::EHOSTUNREACH);
        let said = all.to_string();
        for server in servers {
            assert!(
                tried.has(server) && said.contains(&server.to_string()),
                "{said}"
            );
        }
        // An error of this host is the same for each address.
        let own = attempt(&[(first, Errno::PERM), (second, Errno::HOSTUNREACH)]);
        assert_eq!(own.errno(), libc::EPERM);
        assert!(no_way(&io::ErrorKind::TimedOut.into()).is_some());
    }

    #[test]
    fn patience_ends() {
        assert!(!patience(Duration::ZERO)());
        assert!(patience(Duration::from_secs(3600))());
    }
}
