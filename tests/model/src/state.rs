//! The state of the model at one moment.

use std::collections::VecDeque;

use crate::entry::Entry;

/// How a socket's connection is authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Announced on the control channel before it connects.
    Announced,
    /// By the token in its SYN.
    Token,
    /// Not authenticated: its SYN repeats the token of that socket, after it was spent.
    Copy(usize),
    /// Not authenticated: a program of any user who got the port.
    Stranger,
}

/// A socket's SYN, as the filter at the interface can or cannot read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// It can.
    Read,
    /// It cannot: fragments, or IPsec.
    Unread,
}

/// A socket of the client's host that will connect once. Its number is its sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Its user.
    pub user: u8,
    /// How it is authenticated.
    pub kind: Kind,
    /// Its port.
    pub port: usize,
    /// How its SYN travels.
    pub form: Form,
}

/// The state of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not made yet.
    Unborn,
    /// Has its port.
    Bound,
    /// Has called connect(2).
    Connecting,
    /// Has been answered.
    Connected,
    /// Is gone.
    Closed,
}

/// A socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Socket {
    /// Its state.
    pub phase: Phase,
    /// True if the program was told to connect.
    pub told: bool,
    /// True if the network has copies of its SYN, which may arrive at any time from now on.
    pub syn: bool,
    /// True if a SYN cookie is on its way to it.
    pub cookie: bool,
    /// True if the answer to a SYN cookie is on its way.
    pub ack: bool,
    /// True if the server's keeper has entered its announcement, or the kernel has spent its token
    /// for it.
    pub authenticated: bool,
    /// Was gone when the entry between its endpoints expired: its packets are gone when that is removed.
    pub aged: bool,
    /// Another connection's SYN has ended the entry of its handshake.
    pub displaced: bool,
    /// The signer has a duplicate of it.
    pub held: bool,
    /// The signer is responsible for its announcement.
    pub asked: bool,
    /// The signer withdraws its announcement as soon as it can.
    pub withdraw: bool,
}

/// A frame from the signer to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Admit the connection of this socket.
    Announce(usize),
    /// Withdraw it.
    Withdraw(usize),
}

/// The server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is announced.
    Granted(usize),
    /// It is refused.
    Refused(usize),
    /// It is withdrawn.
    Withdrawn(usize),
}

/// The daemons whose death matters here. The recorder only takes part in opening sessions, and all
/// sessions are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Daemon {
    /// usherd signer.
    Signer,
    /// usherd courier.
    Courier,
    /// usherd verifier.
    Verifier,
    /// usherd keeper.
    Keeper,
}

/// All of them.
pub const DAEMONS: [Daemon; 4] = [
    Daemon::Signer,
    Daemon::Courier,
    Daemon::Verifier,
    Daemon::Keeper,
];

/// A handshake under way. Its SYN-ACK and the answering ACK fit no other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HalfOpen {
    /// The socket of its SYN.
    pub socket: usize,
    /// The user whose queue it leads to.
    pub queue: u8,
    /// The client has answered.
    pub answered: bool,
}

/// A connection of the server's kernel that has left the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Served {
    /// The socket it really belongs to.
    pub socket: usize,
    /// The user in whose queue it is.
    pub queue: u8,
    /// True if the table has it.
    pub tracked: bool,
}

/// The state of the endpoints with one port of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ends {
    /// In the client's kernel: the only socket whose SYN may leave.
    pub gate: Option<usize>,
    /// In the server's table.
    pub entry: Option<Entry>,
    /// A handshake that the server's kernel remembers.
    pub half_open: Option<HalfOpen>,
    /// The connection.
    pub served: Option<Served>,
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// As in the scene.
    pub sockets: Vec<Socket>,
    /// By the client's port.
    pub ends: Vec<Ends>,
    /// The running daemons, in the order of [`DAEMONS`].
    pub running: [bool; 4],
    /// The number of daemons that may still die.
    pub deaths: u8,
    /// True if courier and verifier have a channel.
    pub channel: bool,
    /// Frames on their way through it.
    pub frames: VecDeque<Frame>,
    /// Answers on their way back through it.
    pub answers: VecDeque<Answer>,
    /// Frames of the former channel, which the verifier still reads.
    pub older: Option<VecDeque<Frame>>,
    /// Spent elements, by the socket that drew them.
    pub spent: Vec<bool>,
    /// The connection that each element has admitted.
    pub admitted: Vec<Option<usize>>,
    /// A fault that the state afterwards does not show.
    pub fault: Option<Fault>,
}

/// A fault that only a step shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// An element of a token chain admitted a second connection.
    ElementSpentTwice,
    /// The keeper has cut a connection of the right user, and no other SYN has come between.
    HonestConnectionCut,
}

impl State {
    /// Returns whether the daemon runs.
    pub fn runs(&self, daemon: Daemon) -> bool {
        self.running[daemon as usize]
    }
}
