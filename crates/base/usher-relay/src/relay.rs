//! Moves the bytes between two connections, unread. The end, an abort or an urgent byte of one connection is
//! passed on to the other.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until};
use usher_daemon::packet_async::register;
use usher_system::connections;

use crate::carrier::Carriers;

/// One of the two connections.
struct Watched {
    socket: AsyncFd<OwnedFd>,
    /// Only TCP has urgent bytes here.
    is_tcp: bool,
}

/// A connection that can be relayed: TCP, or a UNIX stream.
pub trait Connection {
    /// Whether it is TCP.
    const IS_TCP: bool;

    /// The connection's socket, which does not block.
    ///
    /// # Errors
    /// When the reactor does not give the socket back.
    fn into_socket(self) -> io::Result<OwnedFd>;
}

impl Connection for TcpStream {
    const IS_TCP: bool = true;

    fn into_socket(self) -> io::Result<OwnedFd> {
        Ok(self.into_std()?.into())
    }
}

impl Connection for UnixStream {
    const IS_TCP: bool = false;

    fn into_socket(self) -> io::Result<OwnedFd> {
        Ok(self.into_std()?.into())
    }
}

impl Watched {
    /// Whether the next byte is an urgent one.
    fn is_at_urgent_byte(&self) -> io::Result<bool> {
        Ok(self.is_tcp && connections::is_at_urgent_byte(&self.socket)?)
    }
}

/// How long the bytes before an abort may take to arrive at the other side, before that side is aborted too.
const LAST_BYTES: Duration = Duration::from_secs(1);
/// The pause between two checks whether these bytes have arrived.
const LOOK: Duration = Duration::from_millis(5);

/// Relays until both directions have ended. Each direction ends by itself: a connection may be closed for
/// sending and still receive. When one connection is aborted or breaks, the other is aborted.
///
/// An urgent byte keeps its place in the stream. Unlike within one connection, its notice does not overtake
/// the bytes before it. A UNIX stream has neither urgent bytes nor aborts: it gets an urgent byte as an
/// ordinary byte, and an abort as its end.
///
/// # Errors
/// The error of the connection that broke. The other one has then been aborted.
pub async fn relay(
    local: TcpStream,
    remote: impl Connection,
    carriers: &Carriers,
) -> io::Result<()> {
    let (local, remote) = (watched(local)?, watched(remote)?);
    let Err((broken, error)) = pump_both(&local, &remote, carriers).await else {
        return Ok(());
    };
    let other = match broken {
        Side::Local => &remote,
        Side::Remote => &local,
    };
    // Bytes sent before an abort usually arrive without a relay, too.
    let until = Instant::now() + LAST_BYTES;
    while Instant::now() < until
        && connections::unacknowledged(&other.socket).is_ok_and(|left| left > 0)
    {
        tokio::time::sleep(LOOK).await;
    }
    abort(&local.socket);
    abort(&remote.socket);
    Err(error)
}

/// Ends a connection by RST, even if other processes hold it: its peer must not take this for the end of
/// the data.
pub fn abort(connection: impl AsFd) {
    // tcp_disconnect(). A connection that has ended needs no abort. A UNIX stream has none.
    if rustix::net::connect_unspec(&connection).is_err() {
        let _ = rustix::net::shutdown(&connection, Shutdown::Both);
    }
}

/// Makes the reactor report urgent bytes too.
fn watched<C: Connection>(connection: C) -> io::Result<Watched> {
    let socket = connection.into_socket()?;
    let mut interest = Interest::READABLE | Interest::WRITABLE;
    if C::IS_TCP {
        // Urgent bytes stay in their place among the others, and no read passes one unseen.
        sockopt::set_socket_oobinline(&socket, true)?;
        interest |= Interest::PRIORITY;
    }
    Ok(Watched {
        socket: register(socket, interest)?,
        is_tcp: C::IS_TCP,
    })
}

/// Which of the two connections.
#[derive(Clone, Copy)]
enum Side {
    Local,
    Remote,
}

/// The side whose failure has stopped a direction.
enum Broken {
    /// The connection from which the bytes come: nothing more can be read.
    From(io::Error),
    /// The connection to which the bytes go. There may be something left to read there.
    To(io::Error),
}

/// The connection that broke first, and its error.
async fn pump_both(
    local: &Watched,
    remote: &Watched,
    carriers: &Carriers,
) -> Result<(), (Side, io::Error)> {
    use Side::{Local, Remote};
    let mut outward = pin!(pump(local, remote, carriers));
    let mut inward = pin!(pump(remote, local, carriers));
    let (mut goes_out, mut comes_in) = (true, true);
    let mut broken: Option<(Side, io::Error, Instant)> = None;
    while goes_out || comes_in {
        let watches = broken.is_none();
        let (ended, from, to) = tokio::select! {
            ended = &mut outward, if goes_out => { goes_out = false; (ended, Local, Remote) }
            ended = &mut inward, if comes_in => { comes_in = false; (ended, Remote, Local) }
            // A direction that waits for one connection does not notice an abort of the other.
            () = aborted(local), if watches => (Err(Broken::To(reset())), Remote, Local),
            () = aborted(remote), if watches => (Err(Broken::To(reset())), Local, Remote),
            () = until(broken.as_ref().map(|(_, _, until)| *until)) => break,
        };
        match ended {
            // For a broken connection this is not the end of the data.
            Ok(()) if broken.is_some() => {}
            Ok(()) => {
                let to = if matches!(to, Local) { local } else { remote };
                // A connection that both peers have closed is no longer connected.
                let _ = rustix::net::shutdown(&to.socket, Shutdown::Write);
            }
            Err(Broken::From(error)) => {
                return Err(broken.map_or((from, error), |(side, error, _)| (side, error)));
            }
            // The other direction moves the remaining bytes, if it continues.
            Err(Broken::To(error)) => {
                let is_read = if matches!(to, Local) {
                    goes_out
                } else {
                    comes_in
                };
                let (side, error, until) =
                    broken.unwrap_or_else(|| (to, error, Instant::now() + LAST_BYTES));
                if !is_read {
                    return Err((side, error));
                }
                broken = Some((side, error, until));
            }
        }
    }
    broken.map_or(Ok(()), |(side, error, _)| Err((side, error)))
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// Waits until a connection is aborted or breaks, but not for its end. The error stays pending: if it were
/// taken, reading would report an orderly end.
async fn aborted(connection: &Watched) {
    if connection.socket.ready(Interest::ERROR).await.is_err() {
        // The reactor has ended, and this task will too.
        pending().await
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Moves all bytes of one direction.
async fn pump(from: &Watched, to: &Watched, carriers: &Carriers) -> Result<(), Broken> {
    let mut carrier = None;
    let mut urgent = false;
    loop {
        let mut ready = from
            .socket
            .ready(Interest::READABLE | Interest::PRIORITY)
            .await
            .map_err(Broken::From)?;
        let carried = carrier.get_or_insert_with(|| carriers.take());
        urgent |= ready.ready().is_priority() || carried.passes_urgent();
        if urgent && from.is_at_urgent_byte().map_err(Broken::From)? {
            urgent = false;
            // An urgent byte that is announced but has not come yet is reported again.
            ready.clear_ready_matching(Ready::PRIORITY);
            if pass_urgent(from, to).await? {
                break;
            }
        }
        match carried.fill(from.socket.get_ref()) {
            // splice(2) stops before an urgent byte.
            Ok(0) if from.is_at_urgent_byte().map_err(Broken::From)? => urgent = true,
            Ok(0) => break,
            Ok(_) => carried.empty(&to.socket).await.map_err(Broken::To)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready.clear_ready_matching(Ready::READABLE | Ready::PRIORITY);
                // Another direction may use the carrier while this one has no bytes.
                carriers.give(carrier.take());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Broken::From(error)),
        }
    }
    carriers.give(carrier);
    Ok(())
}

/// Passes on the next urgent byte, if it has come. Returns true at the end of the connection, because a peer
/// may have announced a byte that never comes.
async fn pass_urgent(from: &Watched, to: &Watched) -> Result<bool, Broken> {
    let mut byte = [0];
    match rustix::io::read(&from.socket, &mut byte) {
        Ok(1..) => {}
        Ok(0) => return Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
        Err(error) => return Err(Broken::From(error.into())),
    }
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::OOB, to.is_tcp);
    let sent = to.socket.async_io(Interest::WRITABLE, |to| {
        Ok(rustix::net::send(to, &byte, flags)?)
    });
    sent.await.map_err(Broken::To)?;
    Ok(false)
}

#[cfg(test)]
mod tests;
