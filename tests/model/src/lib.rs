//! A model of admission: which connection gets into which user's queue, for every order of packets,
//! frames and deaths of daemons. It is a state machine with few users, sockets and ports, and the
//! checker visits all its states (`stateright`).
//!
//! The main property: *a connection in a user's queue belongs to that user's socket, and was
//! authenticated* ([`WHO_IS_SERVED`]). Two more: an element of a token chain admits one connection,
//! and no daemon's death costs an honest connection.
//!
//! One step is one uninterrupted action of the code: a packet's path through `check_token` and
//! `choose_queue`, a frame's path through verifier and keeper, one run of `remove`. Names are those of
//! the code; each step's documentation names the function it stands for.
//!
//! The model has no time: an expiry may happen at any moment from which on it can, and a packet or a
//! frame takes any time. It assumes three relations between times. A gate stands longer than the
//! announcement that it gates (`STANDS` and `CONNECT` in usherd). A frame that announces is answered,
//! or its channel is over, before its gate expires (`ANSWER`). No packet is in the network for as
//! long as the entry of a handshake is kept (`USHER_HANDSHAKE_NS`).
//!
//! The network delays and reorders packets, loses them, and copies SYNs. If the server answers SYNs
//! by cookies, the network does not copy the ACK, and delivers no SYN after its connection has closed,
//! unless [`Scene::late_copies`] is set: a copied SYN and a late ACK together reopen a connection whose
//! client has gone, even for plain TCP.
//!
//! The model leaves out: several CPUs that access one entry at the same time (compare-and-exchange on
//! its mark; tests of usher-kernel), the opening of sessions and so the recorder, forged packets
//! (these need root on the client, or a position on the path), and ports of other network namespaces.

pub mod entry;
pub mod state;

mod client;
mod server;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stateright::{Model, Property};

use entry::{Cause, EntryState, TRANSITIONS, Transition};
use state::{Answer, DAEMONS, Daemon, Ends, Frame, Kind, Phase, Plan, Socket, State};

/// The main property.
pub const WHO_IS_SERVED: &str = "who is served is who was authenticated";

/// The mends in force. Without one of them the model is that of the code before it.
#[derive(Debug, Clone, Copy)]
pub struct Mends {
    /// Every announced connection has a gate in the client's kernel, which outlives the signer.
    pub gates: bool,
    /// A valid token replaces another connection's entry.
    pub tokens_replace: bool,
    /// The first SYN that is read binds an announced entry.
    pub first_syn_binds: bool,
    /// `choose_queue` admits a token's entry only for a packet that was read and is its own.
    pub readings: bool,
    /// `choose_queue` admits the answer to a SYN cookie in SYN_RECEIVED only, and only with the number
    /// after the entry's SYN.
    pub numbers: bool,
    /// `establish` compares the number of the SYN, where the entry has one.
    pub compared: bool,
    /// The verifier withdraws the announcements of a channel that has ended.
    pub channels: bool,
}

impl Mends {
    /// All mends: the present code.
    pub const ALL: Self = Self {
        gates: true,
        tokens_replace: true,
        first_syn_binds: true,
        readings: true,
        numbers: true,
        compared: true,
        channels: true,
    };
}

/// The bounds of a model.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The sockets that may be made.
    pub plans: Vec<Plan>,
    /// The number of ports they use.
    pub ports: usize,
    /// The number of daemons that may die, one after another or at once.
    pub deaths: u8,
    /// True if the server answers SYNs by cookies.
    pub cookies: bool,
    /// True if the network may copy the ACK that answers a cookie, and deliver a copied SYN after its
    /// connection has closed although it was answered by a cookie.
    pub late_copies: bool,
    /// The mends in force.
    pub mends: Mends,
    /// The transitions seen: bit i is `TRANSITIONS[i]`.
    pub seen: Arc<AtomicU32>,
}

impl Scene {
    /// A scene with one port and all mends.
    #[must_use]
    pub fn new(plans: &[Plan]) -> Self {
        Self {
            plans: plans.to_vec(),
            ports: 1,
            deaths: 0,
            cookies: false,
            late_copies: false,
            mends: Mends::ALL,
            seen: Arc::default(),
        }
    }

    /// Changes an entry's state; panics unless the change is in `TRANSITIONS`.
    fn change(&self, transition: Transition) {
        let place = TRANSITIONS.iter().position(|known| *known == transition);
        let place = place.unwrap_or_else(|| panic!("{transition:?} is not in the list"));
        self.seen.fetch_or(1 << place, Ordering::Relaxed);
    }
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A program makes the socket and gets its port, by bind(2) or connect(2).
    Bind(usize),
    /// The signer has the connection announced: `announce` in usherd/src/signer.
    Announce(usize),
    /// The program calls connect(2).
    Connect(usize),
    /// The socket's SYN leaves, if `gate_syn` (bpf/authentication/ticket) permits.
    SynLeaves(usize),
    /// A copy of its SYN arrives: `check_token`, `choose_queue`.
    SynArrives(usize),
    /// A SYN-ACK arrives at the client's host.
    SynAckArrives(usize),
    /// A copy of its ACK arrives: `choose_queue` if it answers a cookie, then `follow`.
    AckArrives(usize),
    /// The server's kernel abandons a handshake.
    HandshakeTimesOut(usize),
    /// The program closes the socket, connected or not: `closed`, called by `follow`.
    Close(usize),
    /// The signer has an announcement withdrawn: the program has reported, has gone, or the signer
    /// has started and found a gate.
    Withdraw(usize),
    /// Verifier and keeper handle the next frame.
    FrameArrives,
    /// The same for a channel that the client has left.
    OlderFrameArrives,
    /// The verifier sees the end of a channel that the client has left.
    OlderChannelEnds,
    /// The signer gets the next answer.
    AnswerArrives,
    /// The courier opens a channel, which replaces the former one.
    NewChannel,
    /// A gate expires.
    GateExpires(usize),
    /// An entry expires: `expires_ns`, and `remove` with USHER_EXPIRE.
    EntryExpires(usize),
    /// The keeper cuts a connection without an entry: `drain_untracked`.
    Cut(usize),
    /// A daemon is killed.
    Dies(Daemon),
    /// It is started again.
    Returns(Daemon),
}

impl Model for Scene {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let socket = Socket {
            phase: Phase::Unborn,
            told: false,
            syn: false,
            cookie: false,
            ack: false,
            authenticated: false,
            displaced: false,
            aged: false,
            held: false,
            asked: false,
            withdraw: false,
        };
        vec![State {
            sockets: vec![socket; self.plans.len()],
            ends: vec![Ends::default(); self.ports],
            running: [true; 4],
            deaths: self.deaths,
            channel: true,
            frames: VecDeque::new(),
            answers: VecDeque::new(),
            older: None,
            spent: vec![false; self.plans.len()],
            admitted: vec![None; self.plans.len()],
            fault: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for socket in 0..self.plans.len() {
            steps.extend([
                Step::Bind(socket),
                Step::Announce(socket),
                Step::Connect(socket),
                Step::SynLeaves(socket),
                Step::SynArrives(socket),
                Step::SynAckArrives(socket),
                Step::AckArrives(socket),
                Step::Close(socket),
                Step::Withdraw(socket),
            ]);
        }
        for port in 0..self.ports {
            steps.extend([
                Step::HandshakeTimesOut(port),
                Step::GateExpires(port),
                Step::EntryExpires(port),
                Step::Cut(port),
            ]);
        }
        steps.extend([
            Step::FrameArrives,
            Step::OlderFrameArrives,
            Step::OlderChannelEnds,
            Step::AnswerArrives,
            Step::NewChannel,
        ]);
        for daemon in DAEMONS {
            steps.push(if state.runs(daemon) {
                Step::Dies(daemon)
            } else {
                Step::Returns(daemon)
            });
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut after = before.clone();
        let possible = self.take(&mut after, step);
        (possible.is_some() && after != *before).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(WHO_IS_SERVED, |scene: &Self, state: &State| {
                state
                    .ends
                    .iter()
                    .flat_map(|ends| ends.served)
                    .all(|served| {
                        scene.plans[served.socket].user == served.queue
                            && state.sockets[served.socket].authenticated
                    })
            }),
            Property::always("nothing else goes wrong", |_, state: &State| {
                state.fault.is_none()
            }),
            Property::sometimes("a connection is served", |_, state: &State| {
                state
                    .ends
                    .iter()
                    .any(|ends| ends.served.is_some_and(|served| served.tracked))
            }),
            Property::sometimes(
                "a connection is served after every death",
                |_, state: &State| {
                    let served = |ends: &Ends| ends.served.is_some_and(|served| served.tracked);
                    state.deaths == 0 && state.ends.iter().any(served)
                },
            ),
        ];
        let last = self.plans.last().map(|plan| plan.kind);
        if matches!(last, Some(Kind::Announced | Kind::Token)) {
            properties.push(Property::sometimes(
                "the last one is served after another",
                |scene: &Self, state: &State| {
                    let last = scene.plans.len() - 1;
                    let served = |ends: &Ends| {
                        ends.served
                            .is_some_and(|served| served.socket == last && served.tracked)
                    };
                    let others = &state.sockets[..last];
                    state.ends.iter().any(served)
                        && others.iter().all(|socket| socket.phase == Phase::Closed)
                },
            ));
        }
        properties
    }
}

impl Scene {
    /// None if the step is impossible now.
    fn take(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Bind(socket) => self.bind(state, socket),
            Step::Announce(socket) => self.announce(state, socket),
            Step::Connect(socket) => self.connect(state, socket),
            Step::SynLeaves(socket) => self.syn_leaves(state, socket),
            Step::SynArrives(socket) => self.syn_arrives(state, socket),
            Step::SynAckArrives(socket) => self.syn_ack_arrives(state, socket),
            Step::AckArrives(socket) => self.ack_arrives(state, socket),
            Step::HandshakeTimesOut(port) => state.ends[port].half_open.take().map(drop),
            Step::Close(socket) => self.close(state, socket),
            Step::Withdraw(socket) => self.withdraw(state, socket),
            Step::FrameArrives => self.frame_arrives(state),
            Step::OlderFrameArrives => self.older_frame_arrives(state),
            Step::OlderChannelEnds => self.older_channel_ends(state),
            Step::AnswerArrives => self.answer_arrives(state),
            Step::NewChannel => self.new_channel(state),
            Step::GateExpires(port) => self.gate_expires(state, port),
            Step::EntryExpires(port) => self.entry_expires(state, port),
            Step::Cut(port) => self.cut(state, port),
            Step::Dies(daemon) => self.dies(state, daemon),
            Step::Returns(daemon) => self.returns(state, daemon),
        }
    }
}

/// The steps of a path, one per line.
#[must_use]
pub fn told(steps: &[Step]) -> String {
    let lines: Vec<String> = steps.iter().map(|step| format!("  {step:?}")).collect();
    lines.join("\n")
}

/// The table of transitions in the form of ARCHITECTURE.md.
#[must_use]
pub fn table() -> String {
    let mut lines = vec![
        "| from | on | to |".to_owned(),
        "| --- | --- | --- |".to_owned(),
    ];
    lines.extend(
        TRANSITIONS
            .iter()
            .map(|(from, cause, to)| format!("| {from} | {cause} | {to} |")),
    );
    lines.join("\n")
}
