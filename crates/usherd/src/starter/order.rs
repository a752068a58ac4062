//! Orders that stand, and the children that are made for them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use usher_kernel::worker::{
    BIRTH, Entry, Input, Newborn, Order, Prepared, SpawnError, Stage, Starter, Told,
};

use super::{LINGER, LOOKS, SPAN, YOUNG};
use crate::keeper::identities;

/// Children of one order that have not executed their program: no user takes the starter from the
/// others.
const SIDE_BY_SIDE: usize = 8;

/// A child that lives.
pub struct Child {
    pid: u32,
    /// The number of its order, which may be over.
    pub order: u64,
    /// Whether the keeper has been told of it.
    pub is_told: bool,
    /// None: it has executed its program.
    pub birth: Option<Birth>,
}

/// A child on its way to its program.
pub struct Birth {
    pub newborn: Newborn,
    pub begun: Instant,
    pub has_accepted: bool,
}

impl Child {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When it is to be looked at again.
    pub fn next_look(&self, now: Instant) -> Instant {
        let begun = self.birth.as_ref().map_or(now, |birth| birth.begun);
        now + match now.duration_since(begun) {
            age if age < YOUNG => LOOKS.0,
            age => LOOKS.1.min(BIRTH.saturating_sub(age)),
        }
    }
}

/// An order that is not over.
pub struct Standing {
    number: u64,
    prepared: Prepared,
    group: OwnedFd,
    pub listener: OwnedFd,
    pub accepts: bool,
    entry: Entry,
    most: usize,
    accounts: u64,
    /// Children that have not executed their program.
    pub coming: Vec<u32>,
    /// As many of them have not accepted a connection.
    unaccepted: usize,
    /// Connections that wait and that no child was made for, as far as is known: one at least when
    /// there is any.
    unmet: usize,
    /// Children that live.
    alive: usize,
    begun: Instant,
    /// When the last child was made.
    last: Instant,
    /// What it ends with when no child is on its way any more.
    outcome: Option<Told>,
}

impl Standing {
    /// Takes an order with its descriptors.
    ///
    /// # Errors
    /// The outer one when the keeper has not sent what belongs to an order, the inner one when no
    /// worker can be made of it.
    pub fn new(order: Order, descriptors: Vec<OwnedFd>) -> io::Result<Result<Self, SpawnError>> {
        let mut descriptors = descriptors.into_iter();
        let (Some(group), Some(listener)) = (descriptors.next(), descriptors.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut command = order.command;
        command.errors = descriptors.next().map(Arc::new);
        let now = Instant::now();
        Ok(Prepared::new(&command, order.accepts).map(|prepared| Self {
            number: order.number,
            prepared,
            group,
            listener,
            accepts: order.accepts,
            entry: order.entry,
            most: order.most as usize,
            accounts: order.accounts,
            coming: Vec::new(),
            unaccepted: 0,
            unmet: usize::from(!order.accepts),
            alive: 0,
            begun: now,
            last: now,
            outcome: None,
        }))
    }

    /// A connection has come, or several.
    pub fn came(&mut self) {
        self.unmet = self.unmet.max(1);
    }

    /// How many children are to be made now.
    pub fn needs(&self) -> usize {
        if self.outcome.is_some() {
            return 0;
        }
        let room = self.most.saturating_sub(self.alive);
        let places = SIDE_BY_SIDE.saturating_sub(self.coming.len());
        self.unmet.min(room).min(places)
    }

    /// Whether the accounts are as they were when the user was looked up.
    pub fn is_current(&self) -> bool {
        identities::stamp() == self.accounts
    }

    /// Makes a child.
    ///
    /// # Errors
    /// What the order ends with.
    pub fn make(&mut self, starter: &Starter) -> Result<Child, Told> {
        let input = match self.accepts {
            true => Input::AcceptOne(self.listener.as_fd()),
            false => Input::Listener(self.listener.as_fd()),
        };
        let made = starter.make(&self.prepared, input, self.group.as_fd(), self.entry);
        let newborn = made.map_err(|error| {
            tracing::error!(%error, "cannot make a worker");
            let errno = match &error {
                SpawnError::Parent(error) => error.raw_os_error(),
                _ => None,
            };
            Told::NotMade(errno.unwrap_or(Errno::INVAL.raw_os_error()))
        })?;
        self.unmet -= 1;
        self.unaccepted += 1;
        self.alive += 1;
        self.last = Instant::now();
        self.coming.push(newborn.pid);
        Ok(Child {
            pid: newborn.pid,
            order: self.number,
            is_told: false,
            birth: Some(Birth {
                newborn,
                begun: self.last,
                has_accepted: false,
            }),
        })
    }

    /// A child has accepted, and has left so many connections waiting.
    pub fn accepted(&mut self, waiting: u8) {
        self.unaccepted = self.unaccepted.saturating_sub(1);
        self.unmet = usize::from(waiting).saturating_sub(self.unaccepted);
    }

    /// A child is not on its way any more.
    pub fn is_born(&mut self, pid: u32, has_accepted: bool) {
        self.coming.retain(|coming| *coming != pid);
        if !has_accepted {
            self.unaccepted = self.unaccepted.saturating_sub(1);
        }
    }

    /// A child was killed before it had done anything. Says whether its kind enters the cgroup from
    /// now on; else the order ends.
    pub fn note_stillborn(&mut self) -> bool {
        let enters = std::mem::replace(&mut self.entry, Entry::Enters);
        if enters == Entry::Enters {
            self.end(Told::Killed);
            return false;
        }
        self.unmet += 1;
        true
    }

    /// Whether a child has failed because another process has taken the connection.
    pub fn found_nothing(stage: Stage, errno: i32) -> bool {
        matches!(SpawnError::failed(stage, errno), SpawnError::NothingWaiting)
    }

    /// A child has ended.
    pub fn gone(&mut self) {
        self.alive = self.alive.saturating_sub(1);
    }

    /// Makes no more children. The first reason is the one that counts.
    pub fn end(&mut self, outcome: Told) {
        self.outcome.get_or_insert(outcome);
    }

    /// What the order has ended with.
    ///
    /// # Errors
    /// It stands, and may be over then.
    pub fn over(&self, now: Instant, many: bool) -> Result<Told, Instant> {
        let linger = if many { now } else { self.last + LINGER };
        let until = linger.min(self.begun + SPAN);
        match self.outcome {
            Some(outcome) if self.coming.is_empty() => Ok(outcome),
            None if self.coming.is_empty() && self.accepts && until <= now => Ok(Told::Over),
            // Children that are on their way are looked at in between.
            _ if until <= now => Err(now + LINGER),
            _ => Err(until),
        }
    }
}
