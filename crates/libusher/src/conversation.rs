//! Conversations with the keeper: requests of one packet, each with one answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use usher_local::packet::{Packet, PacketSocket};
use usher_local::paths;
use usher_proto::calls::{CallReply, CallRequest, MAX_CALL_PACKET};

use crate::process;
use crate::service::ServiceError;

/// How long the keeper may take to answer what it decides in microseconds.
const DECISION: Duration = Duration::from_secs(30);

/// A process's own conversation about its service. A child that is forked meanwhile, by another
/// thread, has a duplicate, by which it could take answers away: see [`forget_inherited`].
pub(crate) struct Conversation(pub(crate) PacketSocket);

/// Open conversations: descriptor and process.
static CONVERSATIONS: Mutex<Vec<(RawFd, u32)>> = Mutex::new(Vec::new());

impl Conversation {
    pub(crate) fn new(keeper: PacketSocket) -> Self {
        let entry = (keeper.as_fd().as_raw_fd(), std::process::id());
        CONVERSATIONS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(entry);
        Self(keeper)
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let own = self.0.as_fd().as_raw_fd();
        CONVERSATIONS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(descriptor, _)| *descriptor != own);
    }
}

/// Closes what this process has of its parent's conversations: it is about to be somebody else's.
/// A table that a thread of the parent held during the fork is given up, as nobody lets go of it.
pub(crate) fn forget_inherited() -> Result<(), ServiceError> {
    let Ok(mut conversations) = CONVERSATIONS.try_lock() else {
        return Err(ServiceError::ForkedInside);
    };
    let own = std::process::id();
    for (descriptor, process) in std::mem::take(&mut *conversations) {
        if process == own {
            conversations.push((descriptor, process));
        } else {
            process::close(descriptor);
        }
    }
    Ok(())
}

pub(crate) fn connect() -> Result<PacketSocket, ServiceError> {
    let keeper =
        PacketSocket::connect(Path::new(paths::KEEPER_CALLS)).map_err(ServiceError::NoKeeper)?;
    set_socket_timeout(&keeper, Timeout::Recv, Some(DECISION))
        .map_err(|error| ServiceError::NoKeeper(error.into()))?;
    Ok(keeper)
}

/// One request and its answer; signals do not disturb it.
pub(crate) fn exchange(
    keeper: &PacketSocket,
    request: &CallRequest,
) -> Result<(CallReply, Packet), ServiceError> {
    ask(keeper, request)?;
    loop {
        match answer(keeper) {
            Err(ServiceError::Interrupted) => {}
            answered => return answered,
        }
    }
}

pub(crate) fn ask(keeper: &PacketSocket, request: &CallRequest) -> Result<(), ServiceError> {
    keeper
        .send(&request.encode(), &[])
        .map_err(ServiceError::NoKeeper)
}

pub(crate) fn answer(keeper: &PacketSocket) -> Result<(CallReply, Packet), ServiceError> {
    let packet = keeper
        .receive(MAX_CALL_PACKET)
        .map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => ServiceError::Interrupted,
            io::ErrorKind::InvalidData => ServiceError::Protocol,
            _ => ServiceError::NoKeeper(error),
        })?;
    if packet.bytes.is_empty() {
        return Err(ServiceError::NoKeeper(io::ErrorKind::UnexpectedEof.into()));
    }
    match CallReply::decode(&packet.bytes).map_err(|_| ServiceError::Protocol)? {
        CallReply::Refused(refusal) => Err(ServiceError::Refused(refusal)),
        reply => Ok((reply, packet)),
    }
}
