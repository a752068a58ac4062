//! What there is at one moment.

use std::collections::VecDeque;

use crate::entry::Entry;

/// How a socket's connection is authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Announced on the control channel before it connects.
    Announced,
    /// By the token in its SYN.
    Token,
    /// Not at all: its SYN carries the token of that socket once more, after it was spent.
    Copy(usize),
    /// Not at all: a program of whoever got the port.
    Stranger,
}

/// What the filter at the interface makes of a socket's SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// It reads it.
    Read,
    /// It does not: fragments, or IPsec.
    Unread,
}

/// A socket of the client's host that will connect once. Its number is its sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Whose.
    pub user: u8,
    /// How it is authenticated.
    pub kind: Kind,
    /// From which port.
    pub port: usize,
    /// How its SYN travels.
    pub form: Form,
}

/// Where a socket is.
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
    /// Has gone.
    Closed,
}

/// A socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Socket {
    /// Where it is.
    pub phase: Phase,
    /// Whether the application was told to connect.
    pub told: bool,
    /// Whether the network has copies of its SYN, which may arrive at any time from now on.
    pub syn: bool,
    /// Whether a SYN cookie is on its way to it.
    pub cookie: bool,
    /// Whether the answer to a SYN cookie is on its way.
    pub ack: bool,
    /// Whether the server's keeper has entered its announcement, or the kernel has spent its token
    /// for it.
    pub authenticated: bool,
    /// Had gone when the entry between its ends expired: its packets have gone when that is removed.
    pub aged: bool,
    /// Another connection's SYN has ended the entry of its handshake.
    pub displaced: bool,
    /// The signer has a duplicate of it.
    pub held: bool,
    /// The signer is responsible for its announcement.
    pub asked: bool,
    /// The signer takes its announcement back as soon as it can.
    pub withdraw: bool,
}

/// What the signer tells a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Admit the connection of this socket.
    Announce(usize),
    /// Do not any more.
    Withdraw(usize),
}

/// What the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is announced.
    Granted(usize),
    /// It is not.
    Refused(usize),
    /// It is no more.
    Withdrawn(usize),
}

/// The daemons whose death matters here. The recorder has a part in opening sessions only, and all
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

/// A handshake that has begun. Its SYN-ACK and the ACK that answers it fit no other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HalfOpen {
    /// Whose SYN.
    pub socket: usize,
    /// In whose queue.
    pub queue: u8,
    /// The client has answered.
    pub answered: bool,
}

/// A connection of the server's kernel that has left the listener's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Served {
    /// Whose it is in truth.
    pub socket: usize,
    /// In whose queue it is.
    pub queue: u8,
    /// Whether the table has it.
    pub tracked: bool,
}

/// What there is for the ends with one port of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ends {
    /// In the client's kernel: whose SYN alone may leave.
    pub guard: Option<usize>,
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
    /// Which daemons run, in the order of [`DAEMONS`].
    pub running: [bool; 4],
    /// How many may still die.
    pub deaths: u8,
    /// Whether courier and verifier have a channel.
    pub channel: bool,
    /// On their way by it.
    pub frames: VecDeque<Frame>,
    /// On their way back by it.
    pub answers: VecDeque<Answer>,
    /// Frames of the channel before, which the verifier still reads.
    pub older: Option<VecDeque<Frame>>,
    /// Elements that are spent, by the socket that drew them.
    pub spent: Vec<bool>,
    /// Which connection each element has admitted.
    pub admitted: Vec<Option<usize>>,
    /// Something that must not happen, which the state afterwards does not show.
    pub fault: Option<Fault>,
}

/// A fault that is seen in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// An element of a token chain admitted a second connection.
    ElementSpentTwice,
    /// The keeper has cut a connection of the right user, and no other SYN has come between.
    HonestConnectionCut,
}

impl State {
    /// Whether the daemon runs.
    pub fn runs(&self, daemon: Daemon) -> bool {
        self.running[daemon as usize]
    }
}
