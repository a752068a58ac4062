//! Conversations with the keeper: requests of one packet, each with one answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use usher_daemon::packet::{Packet, PacketSocket};
use usher_local::paths;
use usher_proto::calls::{CallReply, CallRequest, MAX_CALL_PACKET};

use crate::process;
use crate::service_error::ServiceError;
use crate::table;

/// How long the keeper may take to answer a request that it decides in microseconds.
const DECISION: Duration = Duration::from_secs(30);

/// A process's own conversation about its service. A child that is forked meanwhile, by another thread, has a
/// duplicate of the socket, by which the child could take answers away: see [`forget_inherited`].
pub(crate) struct Conversation(pub(crate) PacketSocket);

/// An open conversation: its descriptor, the inode of its socket, and its process.
#[derive(Clone, Copy)]
struct Entry {
    descriptor: RawFd,
    inode: u64,
    process: u32,
}

static CONVERSATIONS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

impl Conversation {
    /// Connects to the keeper. Enters the conversation in the table first, so that a child forked at any time
    /// finds it.
    pub(crate) fn new() -> Result<Self, ServiceError> {
        let mut conversations = table::lock(&CONVERSATIONS)?;
        let keeper = PacketSocket::unconnected().map_err(ServiceError::NoKeeper)?;
        let inode = rustix::fs::fstat(&keeper)
            .map_err(|error| ServiceError::NoKeeper(error.into()))?
            .st_ino;
        conversations.push(Entry {
            descriptor: keeper.as_fd().as_raw_fd(),
            inode,
            process: std::process::id(),
        });
        drop(conversations);
        let conversation = Self(keeper);
        connect_socket(&conversation.0)?;
        Ok(conversation)
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let own = self.0.as_fd().as_raw_fd();
        // If another thread holds the lock for ever, no call of this process uses the conversation
        // any more.
        if let Ok(mut conversations) = table::lock(&CONVERSATIONS) {
            conversations.retain(|entry| entry.descriptor != own);
        }
    }
}

/// Closes this process's copies of its parent's conversations, because this process is about to become
/// another user's.
pub(crate) fn forget_inherited() -> Result<(), ServiceError> {
    let mut conversations = table::lock(&CONVERSATIONS)?;
    let own = std::process::id();
    let (kept, inherited): (Vec<_>, Vec<_>) = std::mem::take(&mut *conversations)
        .into_iter()
        .partition(|entry| entry.process == own);
    *conversations = kept;
    for entry in inherited {
        // Unless the program has closed the descriptor itself, and its number now stands for something else.
        if process::inode(entry.descriptor) == Some(entry.inode) {
            process::close(entry.descriptor);
        }
    }
    Ok(())
}

pub(crate) fn connect() -> Result<PacketSocket, ServiceError> {
    let keeper = PacketSocket::unconnected().map_err(ServiceError::NoKeeper)?;
    connect_socket(&keeper)?;
    Ok(keeper)
}

fn connect_socket(keeper: &PacketSocket) -> Result<(), ServiceError> {
    keeper
        .connect_to(Path::new(paths::KEEPER_CALLS))
        .map_err(ServiceError::NoKeeper)?;
    set_socket_timeout(keeper, Timeout::Recv, Some(DECISION))
        .map_err(|error| ServiceError::NoKeeper(error.into()))
}

/// Sends one request and receives its answer; signals do not interrupt the exchange.
pub(crate) fn exchange(
    keeper: &PacketSocket,
    request: &CallRequest,
) -> Result<(CallReply, Packet), ServiceError> {
    send_request(keeper, request)?;
    loop {
        match read_reply(keeper) {
            Err(ServiceError::Interrupted) => {}
            answered => return answered,
        }
    }
}

pub(crate) fn send_request(
    keeper: &PacketSocket,
    request: &CallRequest,
) -> Result<(), ServiceError> {
    keeper
        .send(&request.encode(), &[])
        .map_err(ServiceError::NoKeeper)
}

pub(crate) fn read_reply(keeper: &PacketSocket) -> Result<(CallReply, Packet), ServiceError> {
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
