//! The bytes between two connections. They are moved and not read, and what becomes of one
//! connection becomes of the other: an end, an abort, an urgent byte.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use usher_local::packet_async::register;
use usher_system::stream;

use super::carrier::Carriers;

type Watched = AsyncFd<OwnedFd>;

/// How long the bytes before an abort have to arrive on the other side, before it is aborted too.
const LAST_BYTES: Duration = Duration::from_secs(1);
/// How often is looked whether they have.
const LOOK: Duration = Duration::from_millis(5);

/// Relays until both directions have ended. Each ends by itself: a connection may be closed for
/// sending and still receive. When one connection is aborted, or breaks, so is the other.
///
/// An urgent byte keeps its place in the stream. The notice of it does not overtake the bytes before
/// it, as it does within one connection.
///
/// # Errors
/// The error that one of the connections broke with. The other one has then been aborted.
pub async fn relay(local: TcpStream, remote: TcpStream, carriers: &Carriers) -> io::Result<()> {
    let (local, remote) = (watched(local)?, watched(remote)?);
    let Err((broken, error)) = pump_both(&local, &remote, carriers).await else {
        return Ok(());
    };
    let other = match broken {
        Side::Local => &remote,
        Side::Remote => &local,
    };
    // What has been said before the abort is received in most cases without us, too.
    let until = Instant::now() + LAST_BYTES;
    while Instant::now() < until && stream::unacknowledged(other).is_ok_and(|left| left > 0) {
        tokio::time::sleep(LOOK).await;
    }
    abort(&local);
    abort(&remote);
    Err(error)
}

/// Ends a connection by RST, whoever else holds it: its peer must not take it for the end of all
/// that there was to say.
pub fn abort(connection: impl AsFd) {
    // tcp_disconnect(). One that is no more connected has nothing left to abort.
    let _ = rustix::net::connect_unspec(connection);
}

/// Has the reactor tell of urgent bytes as well.
fn watched(connection: TcpStream) -> io::Result<Watched> {
    // An urgent byte that is read is the next one, and none is stepped over unseen.
    sockopt::set_socket_oobinline(&connection, true)?;
    let interest = Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY;
    register(connection.into_std()?.into(), interest)
}

/// One of the two connections.
#[derive(Clone, Copy)]
enum Side {
    Local,
    Remote,
}

/// Why a direction goes no further.
enum Broken {
    /// The connection that it comes from: nothing more can be read.
    From(io::Error),
    /// The connection that it goes to. There may be something left to read there.
    To(io::Error),
}

/// Which connection broke first, and how.
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
            // A direction that waits for the other connection does not see it.
            () = aborted(local), if watches => (Err(Broken::To(reset())), Remote, Local),
            () = aborted(remote), if watches => (Err(Broken::To(reset())), Local, Remote),
            () = until(broken.as_ref().map(|(_, _, until)| *until)) => break,
        };
        match ended {
            // Of a broken connection this is not the end of what there was to say.
            Ok(()) if broken.is_some() => {}
            Ok(()) => {
                let to = if matches!(to, Local) { local } else { remote };
                // One that both peers have closed is not connected any more.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
            }
            Err(Broken::From(error)) => {
                return Err(broken.map_or((from, error), |(side, error, _)| (side, error)));
            }
            // What is there still is brought by the other direction, if that goes on.
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

/// Waits until a connection is aborted or breaks. Not when it ends. The error itself is left there:
/// after it had been taken, reading would look as if the connection had ended.
async fn aborted(connection: &Watched) {
    if connection.ready(Interest::ERROR).await.is_err() {
        // The reactor is gone, and so will be the task.
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
            .ready(Interest::READABLE | Interest::PRIORITY)
            .await
            .map_err(Broken::From)?;
        let carried = carrier.get_or_insert_with(|| carriers.take());
        urgent |= ready.ready().is_priority() || carried.passes_urgent();
        if urgent && stream::is_at_urgent_byte(from).map_err(Broken::From)? {
            urgent = false;
            // One that is announced and has not come yet is told of again.
            ready.clear_ready_matching(Ready::PRIORITY);
            if pass_urgent(from, to).await? {
                break;
            }
        }
        match carried.fill(from.get_ref()) {
            // splice(2) goes no further.
            Ok(0) if stream::is_at_urgent_byte(from).map_err(Broken::From)? => urgent = true,
            Ok(0) => break,
            Ok(_) => carried.empty(to).await.map_err(Broken::To)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready.clear_ready_matching(Ready::READABLE | Ready::PRIORITY);
                // Of use to another connection, as long as this one has nothing.
                carriers.give(carrier.take());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Broken::From(error)),
        }
    }
    carriers.give(carrier);
    Ok(())
}

/// Passes on the urgent byte that is next, if it has come. True at the end, where a peer may have
/// announced one that never comes.
async fn pass_urgent(from: &Watched, to: &Watched) -> Result<bool, Broken> {
    let mut byte = [0];
    match rustix::io::read(from, &mut byte) {
        Ok(1..) => {}
        Ok(0) => return Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
        Err(error) => return Err(Broken::From(error.into())),
    }
    let flags = SendFlags::OOB | SendFlags::NOSIGNAL;
    let sent = to.async_io(Interest::WRITABLE, |to| {
        Ok(rustix::net::send(to, &byte, flags)?)
    });
    sent.await.map_err(Broken::To)?;
    Ok(false)
}

#[cfg(test)]
mod tests;
