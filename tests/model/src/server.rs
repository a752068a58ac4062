//! The server's host: the programs of bpf/authentication/admission, verifier and keeper.

use super::*;
use crate::entry::{Channel, Entry};
use crate::state::{Fault, Form, HalfOpen, Served};

/// A packet as `choose_queue` sees it: the note of `check_token` about it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Note {
    None,
    Syn(usize),
    Later(usize),
}

/// Marks the other sockets with its port: this socket's SYN has come between their handshakes.
fn displace(sockets: &mut [Socket], plans: &[Plan], by: usize) {
    for (place, (socket, plan)) in sockets.iter_mut().zip(plans).enumerate() {
        let others = place != by && plan.port == plans[by].port;
        socket.displaced |= others && socket.phase != Phase::Unborn;
    }
}

impl Scene {
    fn set(&self, entry: &mut Option<Entry>, cause: Cause, to: EntryState) {
        let from = entry.map_or(EntryState::Gone, |entry| entry.state);
        self.change((from, cause, to));
        if to == EntryState::Gone {
            *entry = None;
        } else if let Some(entry) = entry {
            entry.state = to;
        }
    }

    fn enter(&self, entry: &mut Option<Entry>, cause: Cause, fresh: Entry) {
        self.change((EntryState::Gone, cause, fresh.state));
        *entry = Some(fresh);
    }

    /// A copy of a SYN passes through the kernel.
    pub(super) fn syn_arrives(&self, state: &mut State, socket: usize) -> Option<()> {
        if !state.sockets[socket].syn {
            return None;
        }
        let plan = self.plans[socket];
        let mut note = Note::None;
        if plan.form == Form::Read {
            self.check_token(state, socket);
            note = Note::Syn(socket);
        }
        let ends = &mut state.ends[plan.port];
        // An established connection, or a remembered handshake, answers itself.
        if ends.served.is_some() || ends.half_open.is_some() {
            return Some(());
        }
        let Some(queue) = self.choose_queue(&mut ends.entry, note) else {
            // A RST, which the socket obeys if it still exists.
            let own = &mut state.sockets[socket];
            if own.phase == Phase::Connecting {
                own.phase = Phase::Closed;
            }
            return Some(());
        };
        if self.cookies {
            state.sockets[socket].cookie = true;
        } else {
            ends.half_open = Some(HalfOpen {
                socket,
                queue,
                answered: false,
            });
        }
        Some(())
    }

    /// `check_token` for a SYN that it can read.
    fn check_token(&self, state: &mut State, socket: usize) {
        let port = self.plans[socket].port;
        let has_token = matches!(self.plans[socket].kind, Kind::Token | Kind::Copy(_));
        let Some(older) = state.ends[port].entry else {
            if has_token {
                self.check(state, socket);
            }
            return;
        };
        if older.syn == Some(socket) || older.state == EntryState::Established {
            return;
        }
        if !self.mends.tokens_replace {
            // Only an entry that ended at once makes room for another.
            self.claim(state, socket);
            if has_token && state.ends[port].entry.is_none() {
                self.check(state, socket);
            }
            return;
        }
        if !has_token || !self.check(state, socket) {
            self.claim(state, socket);
        }
    }

    /// `check`, `spend` and `admit`: true if the SYN is admitted for its token.
    fn check(&self, state: &mut State, socket: usize) -> bool {
        let element = match self.plans[socket].kind {
            Kind::Copy(of) => of,
            _ => socket,
        };
        let user = self.plans[element].user;
        let entry = &mut state.ends[self.plans[socket].port].entry;
        let announced_by_it = entry.is_some_and(|older| {
            older.element.is_none()
                && older.user == user
                && matches!(older.state, EntryState::Announced | EntryState::SynReceived)
        });
        if announced_by_it || state.spent[element] {
            return false;
        }
        state.spent[element] = true;
        state.sockets[socket].authenticated = element == socket;
        if entry.is_some() {
            displace(&mut state.sockets, &self.plans, socket);
            self.set(entry, Cause::OtherToken, EntryState::Gone);
        }
        let fresh = Entry {
            state: EntryState::Announced,
            user,
            element: Some(element),
            syn: Some(socket),
            expired: false,
            channel: Channel::None,
        };
        self.enter(entry, Cause::Token, fresh);
        true
    }

    /// `claim`: this SYN claims an unclaimed entry, and ends one that another SYN has claimed.
    fn claim(&self, state: &mut State, socket: usize) {
        let slot = &mut state.ends[self.plans[socket].port].entry;
        let Some(entry) = slot else { return };
        if entry.element.is_none() && !self.mends.first_syn_binds {
            return;
        }
        if entry.syn != Some(socket) {
            displace(&mut state.sockets, &self.plans, socket);
        }
        if *entry.syn.get_or_insert(socket) == socket {
            return;
        }
        match entry.state {
            EntryState::Announced => self.set(slot, Cause::OtherSyn, EntryState::Gone),
            EntryState::SynReceived => self.set(slot, Cause::OtherSyn, EntryState::Withdrawn),
            _ => {}
        }
    }

    /// `choose_queue`: the user whose queue takes the packet.
    fn choose_queue(&self, slot: &mut Option<Entry>, note: Note) -> Option<u8> {
        let entry = (*slot)?;
        let open = matches!(entry.state, EntryState::Announced | EntryState::SynReceived);
        if !open || entry.expired || !self.is_in_hand(&entry, note) {
            return None;
        }
        self.set(slot, Cause::Syn, EntryState::SynReceived);
        Some(entry.user)
    }

    /// `is_in_hand` (bpf/authentication/admission/reading.bpf.h).
    fn is_in_hand(&self, entry: &Entry, note: Note) -> bool {
        let received = entry.state == EntryState::SynReceived;
        let by_token = entry.element.is_some();
        match note {
            Note::Later(of) if self.mends.numbers => received && entry.syn == Some(of),
            Note::Later(_) => received || !by_token,
            _ if !by_token || !self.mends.readings => true,
            Note::Syn(of) => entry.syn == Some(of),
            Note::None => false,
        }
    }

    /// A copy of an ACK arrives, and completes its handshake, if there is one.
    pub(super) fn ack_arrives(&self, state: &mut State, socket: usize) -> Option<()> {
        let own = &mut state.sockets[socket];
        let ends = &mut state.ends[self.plans[socket].port];
        if ends.served.is_some() {
            return None;
        }
        let queue = match ends.half_open {
            Some(half_open) if half_open.socket == socket && half_open.answered => half_open.queue,
            None if own.ack => {
                own.ack = self.late_copies;
                let note = match self.plans[socket].form {
                    Form::Read => Note::Later(socket),
                    Form::Unread => Note::None,
                };
                let queue = self.choose_queue(&mut ends.entry, note);
                let Some(queue) = queue else { return Some(()) };
                queue
            }
            _ => return None,
        };
        ends.half_open = None;
        let element = ends.entry.and_then(|entry| entry.element);
        let tracked = self.establish(&mut ends.entry, socket);
        ends.served = Some(Served {
            socket,
            queue,
            tracked,
        });
        if let Some(element) = element.filter(|_| tracked)
            && *state.admitted[element].get_or_insert(socket) != socket
        {
            state.fault = Some(Fault::ElementSpentTwice);
        }
        Some(())
    }

    /// `establish`, called by `follow`: whether the connection had an entry.
    fn establish(&self, slot: &mut Option<Entry>, socket: usize) -> bool {
        let Some(entry) = slot else { return false };
        let under_way = matches!(entry.state, EntryState::SynReceived | EntryState::Withdrawn);
        let its_own = entry.syn.is_none_or(|syn| syn == socket);
        if !under_way || self.mends.compared && !its_own {
            return false;
        }
        self.set(slot, Cause::LastAck, EntryState::Established);
        true
    }

    /// `closed`, called by `follow`.
    pub(super) fn closed(&self, state: &mut State, socket: usize) {
        let ends = &mut state.ends[self.plans[socket].port];
        if ends.served.is_none_or(|served| served.socket != socket) {
            return;
        }
        ends.served = None;
        if ends
            .entry
            .is_some_and(|entry| entry.state == EntryState::Established)
        {
            self.set(&mut ends.entry, Cause::Closed, EntryState::Gone);
        }
    }

    /// The keeper cuts a connection that was reported without an entry.
    pub(super) fn cut(&self, state: &mut State, port: usize) -> Option<()> {
        let served = state.ends[port].served?;
        if served.tracked || !state.runs(Daemon::Keeper) {
            return None;
        }
        let own = &mut state.sockets[served.socket];
        let honest = self.plans[served.socket].user == served.queue && !own.displaced;
        if own.phase == Phase::Connected && honest {
            state.fault = Some(Fault::HonestConnectionCut);
        }
        own.phase = Phase::Closed;
        state.ends[port].served = None;
        Some(())
    }

    /// `expires_ns`, and `remove` with USHER_EXPIRE: a handshake is kept until it can no longer complete.
    pub(super) fn entry_expires(&self, state: &mut State, port: usize) -> Option<()> {
        let ends = &mut state.ends[port];
        let entry = ends.entry.as_mut()?;
        let mut of_port = state.sockets.iter_mut().zip(&self.plans);
        let others = of_port.by_ref().filter(|(_, plan)| plan.port == port);
        match entry.state {
            EntryState::Announced => {
                self.set(&mut ends.entry, Cause::Expired, EntryState::Gone);
            }
            EntryState::Established => return None,
            _ if !entry.expired => {
                entry.expired = true;
                others.for_each(|(socket, _)| socket.aged = socket.phase == Phase::Closed);
            }
            _ if ends.half_open.is_some() => return None,
            _ => {
                self.set(&mut ends.entry, Cause::Expired, EntryState::Gone);
                for (socket, _) in others.filter(|(socket, _)| socket.aged) {
                    socket.syn = false;
                    socket.cookie = false;
                    socket.ack = false;
                }
            }
        }
        Some(())
    }

    /// `remove` with USHER_WITHDRAW.
    fn remove(&self, slot: &mut Option<Entry>, user: u8) {
        let Some(entry) = slot else { return };
        if entry.user != user {
            return;
        }
        match entry.state {
            EntryState::Announced => self.set(slot, Cause::Withdrawn, EntryState::Gone),
            EntryState::SynReceived => self.set(slot, Cause::Withdrawn, EntryState::Withdrawn),
            _ => {}
        }
    }

    /// Verifier and keeper handle a frame, and answer.
    fn serve(&self, state: &mut State, frame: Frame, channel: Channel) -> Answer {
        match frame {
            Frame::Announce(socket) => {
                let plan = self.plans[socket];
                let entry = &mut state.ends[plan.port].entry;
                if entry.is_some() {
                    return Answer::Refused(socket);
                }
                let fresh = Entry {
                    state: EntryState::Announced,
                    user: plan.user,
                    element: None,
                    syn: None,
                    expired: false,
                    channel,
                };
                self.enter(entry, Cause::Announced, fresh);
                state.sockets[socket].authenticated = true;
                Answer::Granted(socket)
            }
            Frame::Withdraw(socket) => {
                let plan = self.plans[socket];
                self.remove(&mut state.ends[plan.port].entry, plan.user);
                Answer::Withdrawn(socket)
            }
        }
    }

    fn serves(state: &State) -> bool {
        state.runs(Daemon::Verifier) && state.runs(Daemon::Keeper)
    }

    pub(super) fn frame_arrives(&self, state: &mut State) -> Option<()> {
        if !Self::serves(state) {
            return None;
        }
        let frame = state.frames.pop_front()?;
        let answer = self.serve(state, frame, Channel::Newest);
        state.answers.push_back(answer);
        Some(())
    }

    pub(super) fn older_frame_arrives(&self, state: &mut State) -> Option<()> {
        if !Self::serves(state) {
            return None;
        }
        let frame = state.older.as_mut()?.pop_front()?;
        self.serve(state, frame, Channel::Older);
        Some(())
    }

    pub(super) fn older_channel_ends(&self, state: &mut State) -> Option<()> {
        if !Self::serves(state) || !state.older.as_ref()?.is_empty() {
            return None;
        }
        state.older = None;
        self.withdraw_older(state);
        Some(())
    }

    /// The verifier handles the end of a channel.
    pub(super) fn withdraw_older(&self, state: &mut State) {
        for ends in &mut state.ends {
            if let Some(entry) = &mut ends.entry
                && entry.channel == Channel::Older
            {
                entry.channel = Channel::None;
                let user = entry.user;
                if self.mends.channels {
                    self.remove(&mut ends.entry, user);
                }
            }
        }
    }
}
