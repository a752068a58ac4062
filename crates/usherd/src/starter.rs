//! The starter: makes the keeper's workers, and tells how they end. A process of its own, so that
//! what is copied for a worker is little, and holds no secret, no queue and no table. It parses
//! requests of the keeper only, which starts it and whose socket is its standard input.
//!
//! It ends with the keeper. Its workers go on when it ends, however that comes: the keeper then
//! starts another one, and follows them by itself.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::signal::unix::{Signal, SignalKind, signal};
use usher_kernel::worker::{
    BIRTH, Ended, Input, MAX_REQUEST, Newborn, Progress, Report, Request, SpawnError, Starter,
    Told, reap_any,
};
use usher_local::packet::{Packet, PacketSocket};
use usher_local::packet_async::{AsyncPacketSocket, register};
use usher_local::roles::{self, HasRole};

use crate::start::{self, Attempt, StartError};

/// Descriptors that may come with a request.
const DESCRIPTORS: usize = 3;
/// The errno that stands for a request of which no process can be made.
const INVALID: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// Runs the starter until the keeper ends.
///
/// # Errors
/// When it cannot start, or nobody but a keeper has started it.
pub fn run() -> Result<(), StartError> {
    let role = roles::Starter::ROLE;
    start::require_root(role.name)?;
    let input = io::stdin().as_fd().try_clone_to_owned();
    let socket = input.attempt("cannot take the keeper's socket")?;
    let kind = rustix::net::sockopt::socket_type(&socket);
    if kind != Ok(rustix::net::SocketType::SEQPACKET) {
        return Err(StartError::File {
            what: "usherd starter is started by the keeper, and by nobody else".into(),
            error: io::ErrorKind::InvalidInput.into(),
        });
    }
    let starter = Starter::prepare(role.capabilities)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .attempt("cannot start the runtime")?;
    runtime
        .block_on(async {
            let ends = signal(SignalKind::child())?;
            let keeper = AsyncPacketSocket::from_blocking(PacketSocket::from_descriptor(socket))?;
            let office = Arc::new(Office {
                keeper,
                under_way: Mutex::default(),
            });
            tokio::select! {
                result = serve(&office, &starter) => result,
                result = watch(&office, ends) => result,
            }
        })
        .attempt("the keeper's socket failed")
}

/// What all tasks share.
struct Office {
    keeper: AsyncPacketSocket,
    /// Children that have not executed their program, and how those ended that have ended: told after
    /// all else that is told of them.
    under_way: Mutex<HashMap<u32, Option<Ended>>>,
}

impl Office {
    async fn tell(&self, number: u64, pid: u32, told: Told) {
        let report = Report { number, pid, told };
        if let Err(error) = self.keeper.send(&report.encode()).await {
            // It has gone, which `serve` sees.
            tracing::debug!(%error, "telling the keeper");
        }
    }
}

/// Makes what the keeper asks for.
async fn serve(office: &Arc<Office>, starter: &Starter) -> io::Result<()> {
    loop {
        let packet = office.keeper.receive_with(MAX_REQUEST, DESCRIPTORS).await?;
        if packet.bytes.is_empty() {
            return Ok(());
        }
        let (request, group, listener) = read(packet)?;
        let input = match request.accepts {
            true => Input::AcceptOne(listener.as_fd()),
            false => Input::Listener(listener.as_fd()),
        };
        let number = request.number;
        match starter.make(&request.command, input, group.as_fd(), request.entry) {
            Ok(newborn) => {
                office.under_way.lock().insert(newborn.pid, None);
                tokio::spawn(see_through(Arc::clone(office), number, newborn));
            }
            Err(error) => {
                let errno = match &error {
                    SpawnError::Parent(error) => error.raw_os_error(),
                    _ => None,
                };
                tracing::error!(%error, "cannot make a worker");
                let told = Told::NotMade(errno.unwrap_or(INVALID));
                office.tell(number, 0, told).await;
            }
        }
    }
}

/// A request, with the cgroup's folder and the listener.
fn read(packet: Packet) -> io::Result<(Request, OwnedFd, OwnedFd)> {
    let mut request = Request::decode(&packet.bytes).map_err(io::Error::other)?;
    let mut descriptors = packet.descriptors.into_iter();
    let (Some(group), Some(listener)) = (descriptors.next(), descriptors.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    request.command.errors = descriptors.next().map(Arc::new);
    Ok((request, group, listener))
}

/// Tells what becomes of a child until it has executed its program.
async fn see_through(office: Arc<Office>, number: u64, mut newborn: Newborn) {
    let pid = newborn.pid;
    let outcome = tokio::time::timeout(BIRTH, birth(&office, number, &mut newborn)).await;
    let told = match outcome {
        Ok(Ok(told)) => told,
        Ok(Err(error)) => {
            tracing::error!(%error, pid, "a worker that is being started says what none says");
            Told::Late
        }
        Err(_) => Told::Late,
    };
    if told == Told::Late
        && let Err(error) = newborn.kill()
    {
        tracing::error!(%error, pid, "cannot kill a worker that does not start");
    }
    office.tell(number, pid, told).await;
    let ended = office.under_way.lock().remove(&pid).flatten();
    if let Some(ended) = ended {
        office.tell(0, pid, Told::Ended(ended)).await;
    }
}

/// Waits until a child has executed its program or failed.
async fn birth(office: &Office, number: u64, newborn: &mut Newborn) -> io::Result<Told> {
    let report = register(newborn.report().try_clone_to_owned()?, Interest::READABLE)?;
    let mut accepted = false;
    loop {
        let mut ready = report.readable().await?;
        match newborn.progress()? {
            Progress::Made => {}
            Progress::Accepted => {
                if !accepted {
                    office.tell(number, newborn.pid, Told::Accepted).await;
                }
                accepted = true;
            }
            Progress::Executed => return Ok(Told::Executed),
            Progress::Stillborn => return Ok(Told::Stillborn),
            Progress::Failed(stage, errno) => return Ok(Told::Failed(stage, errno)),
        }
        ready.clear_ready();
    }
}

/// Tells how children end.
async fn watch(office: &Office, mut signals: Signal) -> io::Result<()> {
    while signals.recv().await.is_some() {
        // One signal may stand for many.
        while let Some((pid, ended)) = reap_any()? {
            if let Some(told_later) = office.under_way.lock().get_mut(&pid) {
                *told_later = Some(ended);
                continue;
            }
            office.tell(0, pid, Told::Ended(ended)).await;
        }
    }
    Ok(())
}
