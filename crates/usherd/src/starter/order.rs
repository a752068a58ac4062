//! Standing orders, and the children made for them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use usher_kernel::worker::{
    BIRTH, Entry, Event, Input, Newborn, Order, Prepared, SpawnError, Stage, Starter,
};

use super::{LINGER, LOOKS, SPAN, YOUNG};
use crate::keeper::host::identities;

/// Limit of children of one order that have not executed their program, so that one user cannot occupy the
/// starter.
const SIDE_BY_SIDE: usize = 8;

/// A living child.
pub struct Child {
    pub pid: u32,
    /// The number of its order, which may be over.
    pub order: u64,
    /// Whether it was reported to the keeper.
    pub is_reported: bool,
    /// `None`: the child has executed its program.
    pub birth: Option<Birth>,
}

/// A child on its way to its program.
pub struct Birth {
    pub newborn: Newborn,
    pub begun: Instant,
    pub has_accepted: bool,
    pub entry: Entry,
}

impl Child {
    /// The time of the child's next check.
    pub fn next_look(&self, now: Instant) -> Instant {
        let begun = self.birth.as_ref().map_or(now, |birth| birth.begun);
        now + match now.duration_since(begun) {
            age if age < YOUNG => LOOKS.0,
            age => LOOKS.1.min(BIRTH.saturating_sub(age)),
        }
    }
}

/// A standing order.
pub struct StandingOrder {
    number: u64,
    prepared: Prepared,
    group: OwnedFd,
    pub listener: OwnedFd,
    pub accepts: bool,
    entry: Entry,
    most: usize,
    /// The number of children that may still be made, if that is limited.
    left: Option<usize>,
    accounts: u64,
    /// Children that have not executed their program.
    pub coming: Vec<u32>,
    /// The number of children that have not accepted a connection.
    unaccepted: usize,
    /// The number of known waiting connections without a child: not 0 if there is any such connection.
    unmet: usize,
    /// The number of living children.
    alive: usize,
    begun: Instant,
    /// The time at which the last child was made.
    last: Instant,
    /// The result with which the order ends once no child is under way.
    outcome: Option<Event>,
}

impl StandingOrder {
    /// Takes an order with its descriptors.
    ///
    /// # Errors
    /// The outer error if the keeper has not sent a complete order, the inner one if no worker can be made
    /// from it.
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
            left: order.total.map(|total| total as usize),
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

    /// Notes that one or more connections have come.
    pub fn came(&mut self) {
        self.unmet = self.unmet.max(1);
    }

    /// The number of children to make now.
    pub fn needs(&self) -> usize {
        if self.outcome.is_some() {
            return 0;
        }
        let room = self.most.saturating_sub(self.alive);
        let places = SIDE_BY_SIDE.saturating_sub(self.coming.len());
        let left = self.left.unwrap_or(usize::MAX);
        self.unmet.min(room).min(places).min(left)
    }

    /// Whether the accounts are unchanged since the user was looked up.
    pub fn is_current(&self) -> bool {
        identities::stamp() == self.accounts
    }

    /// Makes a child.
    ///
    /// # Errors
    /// The result with which the order ends.
    pub fn make(&mut self, starter: &Starter) -> Result<Child, Event> {
        let input = if self.accepts {
            Input::AcceptOne(self.listener.as_fd())
        } else {
            Input::Listener(self.listener.as_fd())
        };
        let made = starter.make(&self.prepared, input, self.group.as_fd(), self.entry);
        let newborn = made.map_err(|error| {
            tracing::error!(%error, "cannot make a worker");
            let errno = match &error {
                SpawnError::Parent(error) => error.raw_os_error(),
                _ => None,
            };
            Event::NotMade(errno.unwrap_or(Errno::INVAL.raw_os_error()))
        })?;
        self.unmet -= 1;
        self.left = self.left.map(|left| left - 1);
        self.unaccepted += 1;
        self.alive += 1;
        self.last = Instant::now();
        self.coming.push(newborn.pid);
        Ok(Child {
            pid: newborn.pid,
            order: self.number,
            is_reported: false,
            birth: Some(Birth {
                newborn,
                begun: self.last,
                has_accepted: false,
                entry: self.entry,
            }),
        })
    }

    /// Notes that a child has accepted, and has left this many connections waiting.
    pub fn accepted(&mut self, waiting: u8) {
        self.unaccepted = self.unaccepted.saturating_sub(1);
        self.unmet = usize::from(waiting).saturating_sub(self.unaccepted);
    }

    /// Notes that a child is no longer under way.
    pub fn is_born(&mut self, pid: u32, has_accepted: bool) {
        self.coming.retain(|coming| *coming != pid);
        if !has_accepted {
            self.unaccepted = self.unaccepted.saturating_sub(1);
        }
    }

    /// Handles a child that was killed before it had done anything. Later children enter the cgroup by
    /// themselves. If this child was already to enter by itself, the order ends, and false is returned.
    pub fn note_stillborn(&mut self, entry: Entry) -> bool {
        self.entry = Entry::Enters;
        if entry == Entry::Enters {
            self.end(Event::Killed);
            return false;
        }
        self.unmet += 1;
        self.left = self.left.map(|left| left + 1);
        true
    }

    /// Whether a child failed because another process has taken the connection.
    pub fn found_nothing(stage: Stage, errno: i32) -> bool {
        matches!(SpawnError::failed(stage, errno), SpawnError::NothingWaiting)
    }

    /// Notes that a child has ended.
    pub fn gone(&mut self) {
        self.alive = self.alive.saturating_sub(1);
    }

    /// Has the order make no more children, and end with this result. The first result counts.
    pub fn end(&mut self, outcome: Event) {
        self.outcome.get_or_insert(outcome);
    }

    /// The result of the ended order.
    ///
    /// # Errors
    /// The order stands. The time is that of the next check.
    pub fn over(&self, now: Instant, many: bool) -> Result<Event, Instant> {
        // When there are too many orders, one that has made a child does not wait for another connection.
        let linger = if many && self.last > self.begun {
            now
        } else {
            self.last + LINGER
        };
        let until = linger.min(self.begun + SPAN);
        match self.outcome {
            Some(outcome) if self.coming.is_empty() => Ok(outcome),
            None if self.coming.is_empty() && self.left == Some(0) => Ok(Event::Over),
            None if self.coming.is_empty() && self.accepts && until <= now => Ok(Event::Over),
            // Check children under way in between.
            _ if until <= now => Err(now + LINGER),
            _ => Err(until),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use usher_kernel::worker::Command;

    use super::*;

    pub fn order(uid: u32) -> Order {
        Order {
            number: 1,
            entry: Entry::Made,
            accepts: true,
            most: 1,
            total: None,
            accounts: 0,
            command: Command {
                program: "/bin/true".into(),
                arguments: Vec::new(),
                environment: Vec::new(),
                uid,
                gid: 2001,
                groups: Vec::new(),
                directory: "/".into(),
                name: "imap".into(),
                label: None,
                umask: 0o077,
                setuid: false,
                pam_session: false,
                files: None,
                refused: Vec::new(),
                only: None,
                errors: None,
            },
        }
    }

    fn taken(uid: u32, descriptors: usize) -> io::Result<Result<(), SpawnError>> {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        let descriptors = std::iter::repeat_with(null).take(descriptors).collect();
        Ok(StandingOrder::new(order(uid), descriptors)?.map(drop))
    }

    #[test]
    fn an_order_without_its_descriptors_is_an_error_of_the_keepers() {
        for too_few in [0, 1] {
            let refused = taken(2001, too_few).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
        // The third is standard error.
        for complete in [2, 3] {
            taken(2001, complete).unwrap().unwrap();
        }
    }

    #[test]
    fn an_order_for_roots_processes_makes_none() {
        assert!(matches!(taken(0, 2), Ok(Err(SpawnError::Root))));
    }
}
