//! Tickets: what the kernel needs to put tokens into the SYNs of a user's connections to a service,
//! so that they need no word with anybody. One for each user and service address that a session is
//! open for; the session's token chain is handed to the kernel block by block.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use usher_kernel::ticket::{self, Ticket, TicketKey, Wanted};
use usher_local::packet_async::register;
use usher_proto::session_id::SessionId;
use usher_proto::token::{TokenChain, TokenKey, TokenSlot};
use zeroize::Zeroizing;

use super::Signer;
use super::announcement::{Place, renew};
use super::sessions::SessionKey;
use crate::start::unix_time;

/// Blocks of a chain that the kernel has ahead of the one it spends: 192 connections, as many as may
/// be made before this process is next run.
const AHEAD: u32 = 3;
/// A block that may still be drawn from, by a program that was interrupted while it drew.
const BEHIND: u32 = 1;
/// How long connections are announced when there are no tokens, before they are asked for again.
/// Four times as long each time that they are refused again at once, so that who is on a way that
/// lets none pass meets that seldom.
const PAUSE: Duration = Duration::from_secs(60);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(8 * 3600);

/// All tickets of this host.
pub struct Tickets {
    /// None where the kernel does not take the programs.
    kernel: Option<ticket::Tickets>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_number: u32,
    issued: HashMap<TicketKey, Issued>,
    tried: HashMap<TicketKey, Tried>,
}

/// Tokens were asked for, and are not asked for again until then.
struct Tried {
    until: Instant,
    pause: Duration,
}

struct Issued {
    since: Instant,
    number: u32,
    session: SessionId,
    chain: TokenChain,
    /// Blocks that the kernel has been given.
    filled: u32,
    renewing: bool,
    place: Place,
}

/// A session that has been granted tokens.
pub struct Grant {
    /// The session.
    pub session: SessionId,
    /// The server's name for it.
    pub slot: TokenSlot,
    /// What masks its tokens.
    pub key: TokenKey,
    /// Its chain.
    pub chain: TokenChain,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
}

impl Tickets {
    /// Loads the programs and attaches them to the control group below which the users' processes
    /// are. Where the kernel refuses, connections are announced one by one, which the log says.
    pub fn open(cgroup: &Path) -> Self {
        let kernel = ticket::Tickets::open(cgroup, &ticket::Limits::default());
        if let Err(error) = &kernel {
            tracing::warn!(%error, "no tokens: every connection is announced to its server");
        }
        Self {
            kernel: kernel.ok(),
            state: Mutex::default(),
        }
    }

    /// Whether the kernel takes tickets.
    pub fn available(&self) -> bool {
        self.kernel.is_some()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().issued.len()
    }

    /// Whether a user's connections to this address carry tokens now.
    pub fn has(&self, uid: u32, server: SocketAddr) -> bool {
        self.lock().issued.contains_key(&TicketKey { uid, server })
    }

    /// Whether somebody should ask for tokens now: there is no ticket, and nobody has tried for a
    /// while. Who is told so is who tries.
    pub fn claim(&self, uid: u32, server: SocketAddr) -> bool {
        let key = TicketKey { uid, server };
        let now = Instant::now();
        let mut state = self.lock();
        // What is over is remembered for a while, to know what is refused again.
        state
            .tried
            .retain(|_, tried| now < tried.until + LONGEST_PAUSE);
        let waiting = state.tried.get(&key).is_some_and(|tried| now < tried.until);
        let claimed = self.available() && !waiting && !state.issued.contains_key(&key);
        if claimed {
            let tried = state.tried.entry(key).or_insert(Tried {
                until: now,
                pause: PAUSE,
            });
            tried.until = now + tried.pause;
        }
        claimed
    }

    /// Has the kernel put tokens of this session into the user's connections to the address, in the
    /// place of an earlier session's.
    pub fn issue(&self, place: Place, grant: Grant) {
        let Some(kernel) = &self.kernel else {
            return;
        };
        let key = TicketKey {
            uid: place.uid,
            server: place.server,
        };
        let mut state = self.lock();
        state.last_number = state.last_number.wrapping_add(1);
        let number = state.last_number;
        let mut issued = Issued {
            since: Instant::now(),
            number,
            session: grant.session,
            chain: grant.chain,
            filled: 0,
            renewing: false,
            place,
        };
        let ticket = Ticket {
            number,
            slot: grant.slot,
            next: 0,
            plain_connect: false,
            key: Zeroizing::new(*grant.key.bytes()),
            lifetime: Duration::from_secs(grant.expires.saturating_sub(unix_time())),
        };
        issued.fill(kernel, 0);
        if let Err(error) = kernel.put(&key, &ticket) {
            issued.empty(kernel);
            return tracing::warn!(%error, "a ticket is not issued: connections are announced");
        }
        if let Some(former) = state.issued.insert(key, issued) {
            former.empty(kernel);
        }
    }

    /// Tokens of this user do not pass on the way to the address: its connections are announced for
    /// a while.
    pub fn suspend(&self, uid: u32, server: SocketAddr) {
        let key = TicketKey { uid, server };
        tracing::info!(uid, %server, "a token was not taken: connections are announced for a while");
        let now = Instant::now();
        let mut state = self.lock();
        // A ticket that was of use for a while: the way lets tokens pass.
        let young = state
            .issued
            .get(&key)
            .is_none_or(|issued| now < issued.since + PAUSE);
        let former = state.tried.get(&key).map(|tried| tried.pause);
        let pause = former
            .filter(|_| young)
            .map_or(PAUSE, |pause| (pause * 4).min(LONGEST_PAUSE));
        let until = now + pause;
        state.tried.insert(key, Tried { until, pause });
        drop(state);
        self.take_back(|issued, _| *issued == key);
    }

    /// The session has ended, or is no longer to be used.
    pub fn ended(&self, session: SessionId) {
        self.take_back(|_, issued| issued.session == session);
    }

    /// Takes back the tickets whose session's place is not kept.
    pub fn retain(&self, keep: impl Fn(&SessionKey) -> bool) {
        self.take_back(|_, issued| !keep(&issued.place.key));
    }

    fn take_back(&self, lost: impl Fn(&TicketKey, &Issued) -> bool) {
        let Some(kernel) = &self.kernel else {
            return;
        };
        self.lock().issued.retain(|key, issued| {
            let lost = lost(key, issued);
            if lost {
                if let Err(error) = kernel.remove(key) {
                    tracing::error!(%error, "taking a ticket back");
                }
                issued.empty(kernel);
            }
            !lost
        });
    }

    /// Fills blocks ahead of need and gives the sessions to renew.
    fn refill(&self, kernel: &ticket::Tickets) -> Vec<Place> {
        let entered = match kernel.wanted() {
            Ok(entered) => entered,
            Err(error) => {
                tracing::error!(%error, "reading what tickets want");
                return Vec::new();
            }
        };
        let mut renewals = Vec::new();
        let mut state = self.lock();
        for Wanted { number, block } in entered {
            let found = state
                .issued
                .values_mut()
                .find(|issued| issued.number == number);
            let Some(issued) = found else {
                // Taken back meanwhile.
                continue;
            };
            issued.fill(kernel, block);
            // A quarter is left for the time that a signature and the server take.
            if !issued.renewing && block >= issued.chain.blocks() * 3 / 4 {
                issued.renewing = true;
                renewals.push(issued.place.clone());
            }
        }
        renewals
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Issued {
    /// Gives the kernel what it may need while it spends `block`, and takes back what is spent.
    fn fill(&mut self, kernel: &ticket::Tickets, block: u32) {
        let wanted = (block + 1 + AHEAD).min(self.chain.blocks());
        while self.filled < wanted {
            let elements = self.chain.block(self.filled);
            if let Err(error) = kernel.fill(self.number, self.filled, &elements) {
                return tracing::error!(%error, "filling a ticket");
            }
            self.filled += 1;
        }
        if let Some(spent) = block.checked_sub(BEHIND + 1) {
            self.take_away(kernel, spent);
        }
    }

    fn empty(&self, kernel: &ticket::Tickets) {
        for block in 0..self.filled {
            self.take_away(kernel, block);
        }
    }

    fn take_away(&self, kernel: &ticket::Tickets, block: u32) {
        // Spent blocks are not there any more.
        if let Err(error) = kernel.drop_block(self.number, block) {
            tracing::error!(%error, "taking a ticket's elements back");
        }
    }
}

/// Fills tickets as they are used up, and renews their sessions.
///
/// # Errors
/// When the reactor cannot take the kernel's reports.
pub async fn keep_filled(signer: Arc<Signer>) -> io::Result<()> {
    let Some(kernel) = &signer.tickets.kernel else {
        return std::future::pending().await;
    };
    let reports = register(
        kernel.wanted_descriptor().map_err(io::Error::other)?,
        Interest::READABLE,
    )?;
    loop {
        let mut ready = reports.readable().await?;
        ready.clear_ready();
        for place in signer.tickets.refill(kernel) {
            let signer = Arc::clone(&signer);
            tokio::spawn(async move {
                if let Err(refusal) = renew(&signer, &place).await {
                    tracing::info!(user = %place.key.user, host = %place.key.host,
                        service = %place.key.service, reason = refusal.name(),
                        "a session is not renewed ahead of need: {refusal}");
                }
            });
        }
    }
}
