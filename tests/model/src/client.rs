//! The client's host: its sockets, its kernel's gates, its signer and its courier.

use super::*;

impl Scene {
    fn port(&self, socket: usize) -> usize {
        self.plans[socket].port
    }

    /// bind(2). A port is free if neither a program nor the signer has a socket with it.
    pub(super) fn bind(&self, state: &mut State, socket: usize) -> Option<()> {
        let taken = (0..self.plans.len()).any(|other| {
            let has = &state.sockets[other];
            self.port(other) == self.port(socket)
                && (has.held
                    || matches!(
                        has.phase,
                        Phase::Bound | Phase::Connecting | Phase::Connected
                    ))
        });
        let own = &mut state.sockets[socket];
        (own.phase == Phase::Unborn && !taken).then(|| own.phase = Phase::Bound)
    }

    /// The signer keeps a duplicate, sets a gate and sends the frame: `announce` and
    /// `Gated::stand` (usherd/src/signer).
    pub(super) fn announce(&self, state: &mut State, socket: usize) -> Option<()> {
        let gate = state.ends[self.port(socket)].gate;
        let own = &state.sockets[socket];
        let possible = self.plans[socket].kind == Kind::Announced
            && own.phase == Phase::Bound
            && !own.asked
            && !own.told
            && !own.withdraw
            && state.runs(Daemon::Signer)
            && state.channel
            && gate.is_none_or(|other| other == socket);
        if !possible {
            return None;
        }
        if self.mends.gates {
            state.ends[self.port(socket)].gate = Some(socket);
        }
        let own = &mut state.sockets[socket];
        own.held = true;
        own.asked = true;
        state.frames.push_back(Frame::Announce(socket));
        Some(())
    }

    /// connect(2), for a program that asks: after it received the address.
    pub(super) fn connect(&self, state: &mut State, socket: usize) -> Option<()> {
        let own = &mut state.sockets[socket];
        let ready =
            own.phase == Phase::Bound && (own.told || self.plans[socket].kind != Kind::Announced);
        ready.then(|| own.phase = Phase::Connecting)
    }

    /// `gate_syn`: while a gate stands, only its own socket's SYN leaves.
    pub(super) fn syn_leaves(&self, state: &mut State, socket: usize) -> Option<()> {
        let gate = state.ends[self.port(socket)].gate;
        if matches!(self.plans[socket].kind, Kind::Copy(of) if !state.spent[of]) {
            return None;
        }
        let own = &mut state.sockets[socket];
        (own.phase == Phase::Connecting && gate.is_none_or(|only| only == socket))
            .then(|| own.syn = true)
    }

    /// The kernel answers a SYN-ACK with an ACK if it is for the current socket, else with a RST, which
    /// ends the server's handshake.
    pub(super) fn syn_ack_arrives(&self, state: &mut State, socket: usize) -> Option<()> {
        let own = &mut state.sockets[socket];
        let ends = &mut state.ends[self.plans[socket].port];
        let half_open = ends
            .half_open
            .filter(|half_open| half_open.socket == socket);
        if half_open.is_none_or(|half_open| half_open.answered) && !own.cookie {
            return None;
        }
        match (own.phase, &mut ends.half_open) {
            (Phase::Connecting, Some(half_open)) if half_open.socket == socket => {
                half_open.answered = true;
                own.phase = Phase::Connected;
            }
            (Phase::Connecting, _) => {
                own.ack = true;
                own.phase = Phase::Connected;
            }
            (_, Some(half_open)) if half_open.socket == socket => ends.half_open = None,
            _ => {}
        }
        own.cookie = false;
        Some(())
    }

    /// close(2), or the end of the program.
    pub(super) fn close(&self, state: &mut State, socket: usize) -> Option<()> {
        let own = &mut state.sockets[socket];
        if !matches!(
            own.phase,
            Phase::Bound | Phase::Connecting | Phase::Connected
        ) {
            return None;
        }
        if own.phase == Phase::Connected && self.cookies && !self.late_copies {
            own.syn = false;
        }
        own.phase = Phase::Closed;
        self.closed(state, socket);
        Some(())
    }

    /// `ask_to_withdraw`: once the program has reported whether it connected, or has gone; and for the
    /// gates that a signer finds when it starts. Repeated when a channel was lost.
    pub(super) fn withdraw(&self, state: &mut State, socket: usize) -> Option<()> {
        let own = &mut state.sockets[socket];
        let over = matches!(own.phase, Phase::Connected | Phase::Closed);
        let on_its_way = state.frames.contains(&Frame::Withdraw(socket))
            || state.answers.contains(&Answer::Withdrawn(socket));
        let possible = self.plans[socket].kind == Kind::Announced
            && own.asked
            && (over || own.withdraw)
            && !on_its_way
            && state.running[Daemon::Signer as usize]
            && state.channel;
        if !possible {
            return None;
        }
        own.withdraw = true;
        state.frames.push_back(Frame::Withdraw(socket));
        Some(())
    }

    /// The signer answers the program, or releases gate and duplicate.
    pub(super) fn answer_arrives(&self, state: &mut State) -> Option<()> {
        match state.answers.pop_front()? {
            Answer::Granted(socket) => {
                let own = &mut state.sockets[socket];
                own.told = own.asked && own.phase == Phase::Bound && !own.withdraw;
            }
            // The program learns that it was refused; the state of other announcements is unknown.
            Answer::Refused(socket) => state.sockets[socket].withdraw = true,
            Answer::Withdrawn(socket) => {
                let own = &mut state.sockets[socket];
                own.asked = false;
                own.held = false;
                let gate = &mut state.ends[self.port(socket)].gate;
                if *gate == Some(socket) {
                    *gate = None;
                }
            }
        }
        Some(())
    }

    /// `until_ns` of a gate, 30 s after the last frame that announces: the announcement has
    /// expired, and no frame of it is on its way.
    pub(super) fn gate_expires(&self, state: &mut State, port: usize) -> Option<()> {
        let socket = state.ends[port].gate?;
        let frame = Frame::Announce(socket);
        let on_its_way = state.frames.contains(&frame)
            || state
                .older
                .as_ref()
                .is_some_and(|older| older.contains(&frame));
        let stands = state.ends[port]
            .entry
            .is_some_and(|entry| entry.element.is_none() && !entry.expired);
        (!on_its_way && !stands).then(|| state.ends[port].gate = None)
    }

    /// A channel ends for the client. Frames already sent may still arrive.
    fn lose_channel(state: &mut State, delivered: bool) {
        let frames = std::mem::take(&mut state.frames);
        state.answers.clear();
        if state.channel && delivered {
            state.older = Some(frames);
            for ends in &mut state.ends {
                if let Some(entry) = &mut ends.entry
                    && entry.channel == entry::Channel::Newest
                {
                    entry.channel = entry::Channel::Older;
                }
            }
        }
        state.channel = false;
    }

    /// A daemon is killed: its memory is lost, its kernel state stays.
    pub(super) fn dies(&self, state: &mut State, daemon: Daemon) -> Option<()> {
        if !state.runs(daemon) || state.deaths == 0 {
            return None;
        }
        state.deaths -= 1;
        state.running[daemon as usize] = false;
        match daemon {
            Daemon::Signer => {
                // The courier then closes its channels.
                Self::lose_channel(state, true);
                for socket in &mut state.sockets {
                    socket.held = false;
                    socket.asked = false;
                    socket.withdraw = false;
                }
            }
            Daemon::Courier => Self::lose_channel(state, true),
            Daemon::Verifier => {
                Self::lose_channel(state, false);
                state.older = None;
                for ends in &mut state.ends {
                    if let Some(entry) = &mut ends.entry {
                        entry.channel = entry::Channel::None;
                    }
                }
            }
            // Its tables are in the kernel.
            Daemon::Keeper => {}
        }
        Some(())
    }

    /// It is started again. A signer withdraws the announcements of the gates that it finds.
    pub(super) fn returns(&self, state: &mut State, daemon: Daemon) -> Option<()> {
        if state.runs(daemon) {
            return None;
        }
        state.running[daemon as usize] = true;
        if daemon == Daemon::Signer {
            for ends in &state.ends {
                if let Some(socket) = ends.gate {
                    state.sockets[socket].asked = true;
                    state.sockets[socket].withdraw = true;
                }
            }
        }
        Some(())
    }

    /// The courier connects, and the verifier ends this host's former channel.
    pub(super) fn new_channel(&self, state: &mut State) -> Option<()> {
        let possible = !state.channel && DAEMONS.into_iter().all(|daemon| state.runs(daemon));
        if !possible {
            return None;
        }
        state.older = None;
        self.withdraw_older(state);
        state.channel = true;
        Some(())
    }
}
