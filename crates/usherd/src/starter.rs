//! The starter makes the keeper's workers and reports their ends. It is a process of its own, so
//! that little memory is copied for a worker, and no secret and no table. It parses only requests
//! of the keeper, which starts it and whose socket is its standard input.
//!
//! In style `connection` an order stands while connections come: the starter waits at the user's
//! listener and makes a process for each, without asking. It never holds a connection. An order is
//! over when no connection has come for a while, when it has stood for a second, when the keeper ends
//! it or the user's queue, when the files of the accounts have changed, and when a worker has failed.
//! The starter checks all of these after it has seen a connection and before it makes each process. So a
//! connection that came after one of these events gets no process by this order.
//!
//! A starter inside a PAM session makes the workers of one order. It ends once the keeper has closed
//! the socket and all its descendants have ended; usher-pam then closes the session.
//!
//! Room: worker processes and their control groups, the listeners of the orders that stand. Only
//! the keeper asks it.

mod order;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use usher_daemon::packet::PacketSocket;
use usher_daemon::role::HasRole;
use usher_kernel::worker::{
    BIRTH, Ends, Event, MAX_REQUEST, Progress, REPORT_SIZE, Report, Request, Starter,
    block_requests_to_end,
};
use usher_local::roles;

use crate::start::{self, Attempt, StartError};
#[cfg(test)]
pub use order::tests::order as example;
use order::{Child, StandingOrder};

/// Limit of descriptors in a request.
const DESCRIPTORS: usize = 3;
/// Reads a packet's length without taking the packet.
const GLANCE: RecvFlags = RecvFlags::PEEK.union(RecvFlags::TRUNC);
/// The time that reports may wait for further ones. The end of an order is reported at once.
const GATHERED: Duration = Duration::from_millis(10);
/// Limit of reports in a packet.
const REPORTS: usize = 64;
/// The time that an order stands without a connection.
const LINGER: Duration = Duration::from_millis(100);
/// Limit of the time that an order stands: then the keeper looks the user up again.
const SPAN: Duration = Duration::from_secs(1);
/// Limit of standing orders. Further ones are over once the waiting connections are served.
const STANDING: usize = 512;
/// The interval of checks of children that have not executed their program: young ones, and others.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The age until which a child is young.
const YOUNG: Duration = Duration::from_millis(100);

/// Event numbers of the keeper's socket, of ends and of the bell; other numbers are orders.
const KEEPER: u64 = 0;
const ENDS: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

/// Runs the starter until the keeper ends; inside a PAM `session`, until the keeper closes the
/// socket and all descendants have ended.
///
/// # Errors
/// When it cannot start, or was not started by a keeper.
pub fn run(session: bool) -> Result<(), StartError> {
    let role = roles::Starter::ROLE;
    start::require_root(role.name)?;
    let input = io::stdin().as_fd().try_clone_to_owned();
    let socket = input.attempt("cannot take the keeper's socket")?;
    let kind = rustix::net::sockopt::socket_type(&socket);
    if kind != Ok(rustix::net::SocketType::SEQPACKET) {
        return Err(StartError::File(
            "usherd starter is started by the keeper only".into(),
            io::ErrorKind::InvalidInput.into(),
        ));
    }
    let starter = Starter::prepare(role.capabilities)?;
    if session {
        // Processes that workers leave behind become children of this process.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(io::Error::from)
            .and_then(|()| block_requests_to_end())
            .attempt("cannot take part in a PAM session")?;
    }
    Office::open(starter, socket, session)
        .attempt("cannot wait for the keeper")?
        .run()
        .attempt("the keeper's socket failed")
}

/// Whether a child, or a process that a worker left behind, still exists.
fn has_children() -> io::Result<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::All, look) {
        Ok(_) => Ok(true),
        Err(Errno::CHILD) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The starter's state.
struct Office {
    starter: Starter,
    keeper: PacketSocket,
    ends: Ends,
    events: OwnedFd,
    orders: HashMap<u64, StandingOrder>,
    /// All living children, by process id.
    children: HashMap<u32, Child>,
    /// Unsent reports, and the time of the oldest.
    reports: Vec<u8>,
    waiting_since: Option<Instant>,
    /// The time of the next check without an event; `None`: no check.
    due: Option<Instant>,
    closed: bool,
    /// Whether the starter ends after all its descendants.
    session: bool,
}

impl Office {
    fn open(starter: Starter, keeper: OwnedFd, session: bool) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&keeper, true)?;
        let office = Self {
            starter,
            keeper: PacketSocket::from_descriptor(keeper),
            ends: Ends::hear()?,
            events: epoll::create(CreateFlags::CLOEXEC)?,
            orders: HashMap::new(),
            children: HashMap::new(),
            reports: Vec::new(),
            waiting_since: None,
            due: None,
            closed: false,
            session,
        };
        for (descriptor, number) in [
            (office.keeper.as_fd(), KEEPER),
            (office.ends.as_fd(), ENDS),
            (office.starter.bell(), BELL),
        ] {
            let data = EventData::new_u64(number);
            epoll::add(&office.events, descriptor, data, EventFlags::IN)?;
        }
        Ok(office)
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while !self.closed || self.session && has_children()? {
            events.clear();
            // The time until the next check; `None`: no limit.
            let left = |due: Instant| due.saturating_duration_since(Instant::now()).try_into();
            let patience = self.due.map(left).transpose().map_err(io::Error::other)?;
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.events, buffer, patience.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.see(event)?;
            }
            self.look_after(Instant::now())?;
        }
        self.flush();
        Ok(())
    }

    fn see(&mut self, event: &epoll::Event) -> io::Result<()> {
        match event.data.u64() {
            KEEPER => self.listen(),
            ENDS => self.reap(),
            BELL => {
                // Reading only clears the bell.
                match rustix::io::read(self.starter.bell(), &mut [0; 8]) {
                    Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                let busy: Vec<u64> = self
                    .orders
                    .iter()
                    .filter(|(_, order)| !order.coming.is_empty())
                    .map(|(number, _)| *number)
                    .collect();
                busy.into_iter().try_for_each(|number| self.serve(number))
            }
            number => {
                // Look at the order's children first: connections that they saw waiting came earlier.
                self.look_at(number)?;
                if let Some(order) = self.orders.get_mut(&number) {
                    let flags = event.flags;
                    // The listener was closed, or a connection has come.
                    if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                        order.end(Event::Over);
                    } else {
                        order.came();
                    }
                }
                self.serve(number)
            }
        }
    }

    /// Reads the keeper's requests.
    fn listen(&mut self) -> io::Result<()> {
        loop {
            // Usually there is no request, so no buffer is allocated before its length is known.
            let length = match rustix::net::recv(self.keeper.as_fd(), &mut [0], GLANCE) {
                Ok((_, length)) => length.min(MAX_REQUEST),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                // The keeper has ended without reading all reports.
                Err(Errno::CONNRESET) => return self.close(),
                Err(error) => return Err(error.into()),
            };
            let (packet, is_complete) = self.keeper.receive_any(length, DESCRIPTORS)?;
            if packet.bytes.is_empty() {
                return self.close();
            }
            match Request::decode(&packet.bytes).map_err(io::Error::other)? {
                Request::Ping => self.report(0, 0, Event::Pong),
                Request::End => {
                    for order in self.orders.values_mut().filter(|order| order.accepts) {
                        order.end(Event::Over);
                    }
                    self.due = Some(Instant::now());
                }
                Request::Order(order) => {
                    let number = order.number;
                    if !is_complete {
                        // The user's queue was closed meanwhile: only the owner receives a closed listener.
                        self.report(number, 0, Event::Over);
                        continue;
                    }
                    match StandingOrder::new(*order, packet.descriptors)? {
                        Ok(standing) => {
                            if standing.accepts {
                                let data = EventData::new_u64(number);
                                // Each new connection causes one event.
                                let flags = EventFlags::IN | EventFlags::ET;
                                epoll::add(&self.events, &standing.listener, data, flags)?;
                            }
                            self.orders.insert(number, standing);
                            self.due = Some(Instant::now());
                        }
                        Err(error) => {
                            tracing::error!(%error, "cannot make a worker");
                            self.report(number, 0, Event::NotMade(Errno::INVAL.raw_os_error()));
                        }
                    }
                }
            }
        }
    }

    /// Accepts no more orders: the keeper has closed the socket or has ended.
    fn close(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        for order in self.orders.values_mut() {
            order.end(Event::Over);
        }
        self.due = Some(Instant::now());
        Ok(epoll::delete(&self.events, self.keeper.as_fd())?)
    }

    /// Makes the processes that an order needs now.
    fn serve(&mut self, number: u64) -> io::Result<()> {
        self.look_at(number)?;
        let needs = |office: &Self| office.orders.get(&number).map_or(0, StandingOrder::needs);
        if needs(self) == 0 {
            return Ok(());
        }
        // Requests and changes from before the connection came take precedence.
        self.listen()?;
        for _ in 0..needs(self) {
            let Some(order) = self.orders.get_mut(&number) else {
                break;
            };
            if !order.is_current() {
                order.end(Event::Over);
                break;
            }
            match order.make(&self.starter) {
                Ok(child) => {
                    self.children.insert(child.pid, child);
                }
                Err(event) => order.end(event),
            }
        }
        self.due = Some(Instant::now());
        Ok(())
    }

    /// Checks the progress of an order's children.
    fn look_at(&mut self, number: u64) -> io::Result<()> {
        let coming = self.orders.get(&number).map(|order| order.coming.clone());
        coming
            .unwrap_or_default()
            .into_iter()
            .try_for_each(|pid| self.look_at_child(pid))
    }

    fn look_at_child(&mut self, pid: u32) -> io::Result<()> {
        let Some(child) = self.children.get_mut(&pid) else {
            return Ok(());
        };
        let (Some(birth), Some(order)) = (&mut child.birth, self.orders.get_mut(&child.order))
        else {
            return Ok(());
        };
        let mut is_late = birth.begun.elapsed() >= BIRTH;
        let progress = birth.newborn.progress().unwrap_or_else(|error| {
            tracing::error!(%error, pid, "cannot understand the report of a worker that is being \
                started");
            is_late = true;
            Progress::Made
        });
        let mut event = None;
        if !birth.has_accepted
            && let Some(accepted) = birth.newborn.accepted()
        {
            birth.has_accepted = true;
            order.accepted(accepted.waiting);
        }
        let client = birth
            .newborn
            .accepted()
            .and_then(|accepted| accepted.client);
        let begun = Some(Event::Begun(client));
        if birth.has_accepted {
            event = begun;
        }
        let is_over = match progress {
            Progress::Made | Progress::Accepted if !is_late => false,
            Progress::Made | Progress::Accepted => {
                birth.newborn.kill()?;
                order.end(Event::Late);
                event = begun;
                true
            }
            Progress::Executed => {
                if !order.accepts {
                    order.end(Event::Over);
                }
                event = begun;
                true
            }
            Progress::Stillborn => {
                event = order
                    .note_stillborn(birth.entry)
                    .then_some(Event::Stillborn);
                true
            }
            Progress::Failed(stage, errno) => {
                // A child that found no connection is no failure: another process has taken it.
                if !StandingOrder::found_nothing(stage, errno) {
                    order.end(Event::Failed(stage, errno));
                }
                true
            }
        };
        if is_over {
            order.is_born(pid, birth.has_accepted);
            child.birth = None;
        }
        if matches!(event, Some(Event::Begun(_))) && std::mem::replace(&mut child.is_reported, true)
        {
            event = None;
        }
        let number = child.order;
        if let Some(event) = event {
            self.report(number, pid, event);
        }
        Ok(())
    }

    /// Reaps ended children.
    fn reap(&mut self) -> io::Result<()> {
        while let Some((pid, ended)) = self.ends.next()? {
            self.look_at_child(pid)?;
            let Some(child) = self.children.remove(&pid) else {
                continue;
            };
            if child.is_reported {
                self.report(0, pid, Event::Ended(ended));
            }
            if let Some(order) = self.orders.get_mut(&child.order) {
                order.gone();
            }
            self.serve(child.order)?;
        }
        Ok(())
    }

    /// Runs the checks that are due.
    fn look_after(&mut self, now: Instant) -> io::Result<()> {
        if self.due.is_none_or(|due| due > now) {
            return Ok(());
        }
        let many = self.orders.len() > STANDING;
        let numbers: Vec<u64> = self.orders.keys().copied().collect();
        let mut due: Option<Instant> = None;
        let mut at = |moment: Instant| due = Some(due.map_or(moment, |due| due.min(moment)));
        for number in numbers {
            self.serve(number)?;
            let Some(order) = self.orders.get_mut(&number) else {
                continue;
            };
            match order.over(now, many) {
                Ok(event) => {
                    if let Some(order) = self.orders.remove(&number)
                        && order.accepts
                    {
                        epoll::delete(&self.events, &order.listener)?;
                    }
                    self.report(number, 0, event);
                }
                Err(next) => {
                    at(next);
                    let births = order.coming.iter().filter_map(|pid| self.children.get(pid));
                    births.for_each(|child| at(child.next_look(now)));
                }
            }
        }
        if let Some(since) = self.waiting_since {
            if now >= since + GATHERED {
                self.flush();
            }
            at(since.max(now) + GATHERED);
        }
        self.due = due;
        Ok(())
    }

    /// Reports to the keeper: soon, or at once if a task there waits for it.
    fn report(&mut self, number: u64, pid: u32, event: Event) {
        self.reports.extend(Report { number, pid, event }.encode());
        if event.is_last() || event == Event::Pong || self.reports.len() >= REPORTS * REPORT_SIZE {
            self.flush();
        } else if self.waiting_since.is_none() {
            let now = Instant::now();
            self.waiting_since = Some(now);
            let until = now + GATHERED;
            self.due = Some(self.due.map_or(until, |due| due.min(until)));
        }
    }

    /// Sends the keeper as many reports as its socket accepts.
    fn flush(&mut self) {
        let mut sent = 0;
        for packet in self.reports.chunks(REPORTS * REPORT_SIZE) {
            if let Err(error) = self.keeper.send(packet, &[]) {
                tracing::debug!(%error, "reporting to the keeper");
                // The keeper is busy, or it has ended and needs no report.
                if error.kind() != io::ErrorKind::WouldBlock {
                    sent = self.reports.len();
                }
                break;
            }
            sent += packet.len();
        }
        self.reports.drain(..sent);
        self.waiting_since = (!self.reports.is_empty()).then(Instant::now);
    }
}
