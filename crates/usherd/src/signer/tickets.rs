//! Tickets: the data with which the kernel puts tokens into the SYNs of a user's connections to a service, so
//! that these need no request. There is a ticket for each user and service address with an open session. The
//! session's token chain goes to the kernel block by block.

mod plain;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_kernel::ticket::{self, Ticket, TicketKey, Wanted};
use usher_local::paths;
use usher_policy::protection::MarkMask;
use usher_proto::session_id::SessionId;
use usher_proto::token::{TokenChain, TokenKey, TokenSlot};

use super::asking::Asking;
use super::sessions::{Pair, SessionKey};

/// Blocks of a chain that the kernel has ahead of the present one: enough for 192 connections
/// before this process runs again.
const AHEAD: u32 = 3;
/// Blocks that are kept behind the present one, for a program that was interrupted while drawing from them.
const BEHIND: u32 = 1;

/// All tickets of this host.
#[derive(Default)]
pub struct Tickets {
    /// The programs; `None` if the kernel refuses them.
    pub kernel: Option<ticket::Tickets>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    last_number: u32,
    issued: HashMap<TicketKey, Issued>,
    asking: Asking,
}

struct Issued {
    /// Whether tokens of earlier tickets have passed.
    proven: bool,
    number: u32,
    session: SessionId,
    chain: TokenChain,
    /// The number of blocks that the kernel has.
    filled: u32,
    renewal: Renewal,
    pair: Pair,
}

#[derive(PartialEq, Eq)]
enum Renewal {
    NotYet,
    UnderWay,
    /// The renewal is tried again when the next block is begun, or when a connection is announced.
    Failed,
}

/// The right to request tokens, which one task has at a time. A renewal may have to wait first.
pub struct TokenPermit {
    state: Arc<Mutex<State>>,
    key: TicketKey,
    from: Instant,
}

impl TokenPermit {
    /// Waits until the request may be made.
    pub async fn has_come(&self) {
        tokio::time::sleep_until(self.from.into()).await;
    }
}

impl Drop for TokenPermit {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.asking.end(&self.key);
        // If the request has succeeded, there is a new ticket, whose renewal is not under way.
        if let Some(issued) = state.issued.get_mut(&self.key)
            && issued.renewal == Renewal::UnderWay
        {
            issued.renewal = Renewal::Failed;
        }
    }
}

/// A session with granted tokens.
pub struct Grant {
    /// The session.
    pub session: SessionId,
    /// The server's slot for it.
    pub slot: TokenSlot,
    /// The key that masks its tokens.
    pub key: TokenKey,
    /// Its chain.
    pub chain: TokenChain,
    /// Its end, in seconds since 1970.
    pub expires: u64,
}

impl Tickets {
    /// Loads the programs and attaches them to the control group above the users' processes. If the
    /// kernel refuses, connections are announced one by one, and the log says so.
    ///
    /// `marks` is the policy's mask when the signer starts, because the signer then gives up the privilege to
    /// set marks. Under another mask, held SYNs of protected sockets leave when the kernel sends them again.
    pub fn open(cgroup: &Path, marks: MarkMask) -> Self {
        let pins = Path::new(paths::SIGNER_PIN_DIRECTORY);
        let limits = ticket::Limits {
            class_bits: marks.class_bits(),
            ..ticket::Limits::default()
        };
        let kernel = ticket::Tickets::open(cgroup, Some(pins), &limits);
        match &kernel {
            Ok(kernel) => warn_of_lacks(kernel),
            Err(error) => {
                tracing::warn!(%error, "cannot use tokens: every connection is announced \
                to its server, and if usherd signer dies, a local user may briefly pass for the \
                announcer")
            }
        }
        Self {
            kernel: kernel.ok(),
            state: Arc::default(),
        }
    }

    /// Whether the kernel accepts tickets.
    pub fn available(&self) -> bool {
        self.kernel.is_some()
    }

    /// The number of tickets.
    pub fn len(&self) -> usize {
        self.state.lock().issued.len()
    }

    /// The number of the ticket whose tokens a user's connections to this address carry now.
    pub fn number(&self, uid: u32, server: SocketAddr) -> Option<u32> {
        let key = TicketKey { uid, server };
        self.state
            .lock()
            .issued
            .get(&key)
            .map(|issued| issued.number)
    }

    /// The user and the service of a ticket's session with a host.
    pub fn pair_of(&self, host: &HostName, session: SessionId) -> Option<Pair> {
        let state = self.state.lock();
        let mut issued = state.issued.values();
        let found =
            issued.find(|issued| issued.session == session && issued.pair.key.host == *host)?;
        Some(found.pair.clone())
    }

    /// The right to request tokens now, if there is no ticket or one that could not be renewed, and
    /// no task has tried for a while. The caller must try.
    pub fn claim(&self, key: TicketKey) -> Option<TokenPermit> {
        let issued = self
            .state
            .lock()
            .issued
            .get(&key)
            .is_none_or(|issued| issued.renewal == Renewal::Failed);
        issued.then(|| self.claim_for_new_session(key)).flatten()
    }

    /// Like [`Tickets::claim`], for a session that was just opened: an existing ticket is another
    /// session's.
    pub fn claim_for_new_session(&self, key: TicketKey) -> Option<TokenPermit> {
        let now = Instant::now();
        let claimed = self.available() && self.state.lock().asking.claim(key, now);
        claimed.then(|| TokenPermit {
            state: Arc::clone(&self.state),
            key,
            from: now,
        })
    }

    /// Has the kernel put tokens of this session into the user's connections to the address. Returns the
    /// session whose ticket is replaced. Does nothing if a token has been refused meanwhile.
    pub fn issue(&self, pair: Pair, grant: Grant) -> Option<SessionId> {
        let kernel = self.kernel.as_ref()?;
        let key = pair.ticket_key();
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.asking.is_suspended(&key, now) {
            tracing::info!(uid = key.uid, server = %key.server,
                "a ticket is not issued: a token was refused a short while ago");
            return None;
        }
        state.last_number = state.last_number.wrapping_add(1);
        let number = state.last_number;
        let former = state.issued.get(&key);
        let mut issued = Issued {
            proven: former.is_some_and(|former| self.is_proven(&key, former)),
            number,
            session: grant.session,
            chain: grant.chain,
            filled: 0,
            renewal: Renewal::NotYet,
            pair,
        };
        let ticket = Ticket {
            number,
            slot: grant.slot,
            next: 0,
            key: grant.key,
            lifetime: Duration::from_secs(grant.expires.saturating_sub(unix_time())),
        };
        issued.fill(kernel, 0);
        if let Err(error) = kernel.put(&key, &ticket) {
            issued.empty(kernel);
            tracing::warn!(%error, "cannot issue a ticket: connections are announced");
            return None;
        }
        state.asking.granted(&key, now);
        let former = state.issued.insert(key, issued)?;
        former.empty(kernel);
        Some(former.session)
    }

    /// Takes back a ticket whose tokens do not pass on the path to the address. The user's connections to the
    /// address are then announced for a while. Returns the session, to be closed; `None` if the ticket is
    /// already gone.
    pub fn suspend(&self, uid: u32, server: SocketAddr, number: u32) -> Option<(Pair, SessionId)> {
        let key = TicketKey { uid, server };
        let mut state = self.state.lock();
        let present = state.issued.get(&key)?;
        let proven = self.is_proven(&key, present);
        let lost = state.suspend(key, number, proven, Instant::now())?;
        tracing::info!(uid, %server, "a token was not taken: connections are announced for a while");
        self.take_away(&key, &lost);
        Some((lost.pair, lost.session))
    }

    /// Whether the path lets tokens pass: connections with tokens of the present ticket, or of an earlier
    /// one, were established.
    fn is_proven(&self, key: &TicketKey, present: &Issued) -> bool {
        let passed = |kernel: &ticket::Tickets| {
            kernel.has_passed(key).unwrap_or_else(|error| {
                tracing::error!(%error, "cannot read a ticket");
                false
            })
        };
        present.proven || self.kernel.as_ref().is_some_and(passed)
    }

    /// Takes back the ticket of a session that the server has ended or that is about to be closed.
    pub fn ended(&self, session: SessionId) {
        self.take_back(|issued| issued.session == session);
    }

    /// Takes back the tickets whose session's pair is not kept, and returns the sessions, to be
    /// closed.
    pub fn retain(&self, keep: impl Fn(&SessionKey) -> bool) -> Vec<(Pair, SessionId)> {
        let lost = self.take_back(|issued| !keep(&issued.pair.key));
        lost.into_iter()
            .map(|issued| (issued.pair, issued.session))
            .collect()
    }

    fn take_back(&self, lost: impl Fn(&Issued) -> bool) -> Vec<Issued> {
        let mut state = self.state.lock();
        let taken = state.issued.extract_if(|_, issued| lost(issued));
        let taken: Vec<(TicketKey, Issued)> = taken.collect();
        for (key, issued) in &taken {
            self.take_away(key, issued);
        }
        taken.into_iter().map(|(_, issued)| issued).collect()
    }

    /// Has the kernel forget a ticket that is no longer listed.
    fn take_away(&self, key: &TicketKey, issued: &Issued) {
        let Some(kernel) = &self.kernel else {
            return;
        };
        if let Err(error) = kernel.remove(key) {
            tracing::error!(%error, "cannot take a ticket back");
        }
        issued.empty(kernel);
    }

    /// Fills blocks ahead of need, and returns the sessions to renew.
    pub fn refill(
        &self,
        kernel: &ticket::Tickets,
        wanted: Vec<Wanted>,
    ) -> Vec<(Pair, TokenPermit)> {
        let mut renewals = Vec::new();
        let mut state = self.state.lock();
        let state = &mut *state;
        for Wanted { number, block } in wanted {
            let found = state
                .issued
                .values_mut()
                .find(|issued| issued.number == number);
            let Some(issued) = found else {
                // The ticket was taken back meanwhile.
                continue;
            };
            issued.fill(kernel, block);
            // A quarter is left for the time that a signature and the server take.
            let due = block >= issued.chain.blocks() * 3 / 4;
            if due && issued.renewal != Renewal::UnderWay {
                let key = issued.pair.ticket_key();
                issued.renewal = Renewal::UnderWay;
                // `None`: another task is requesting a new session's tokens, which serves as well. If that
                // task fails, the renewal has failed.
                if let Some(from) = state.asking.begin(key, Instant::now()) {
                    let state = Arc::clone(&self.state);
                    renewals.push((issued.pair.clone(), TokenPermit { state, key, from }));
                }
            }
        }
        renewals
    }
}

/// Logs the features that the programs lack.
fn warn_of_lacks(kernel: &ticket::Tickets) {
    if let Err(error) = kernel.holding().gates().lasting() {
        tracing::warn!(%error, "cannot pin gates: if usherd signer dies, a local user may briefly \
            pass for the announcer of a connection");
    }
    if let Err(error) = kernel.holding().sender() {
        tracing::warn!(%error, "cannot send held SYNs: held connections begin a second late; start \
            usherd signer with CAP_NET_RAW");
    }
    if let Err(error) = usher_bpf::guard::claim(kernel.objects()) {
        tracing::warn!(%error, "cannot guard tickets and gates: root's processes can change them");
    }
}

impl State {
    /// Removes the ticket of this number from the list, and lets tokens be requested only after a pause.
    /// `proven`: other tokens had passed.
    fn suspend(
        &mut self,
        key: TicketKey,
        number: u32,
        proven: bool,
        now: Instant,
    ) -> Option<Issued> {
        self.issued
            .get(&key)
            .filter(|issued| issued.number == number)?;
        let lost = self.issued.remove(&key)?;
        self.asking.refused(key, proven, now);
        Some(lost)
    }
}

impl Issued {
    /// Gives the kernel the blocks that it may need after `block`, and takes back the spent ones.
    fn fill(&mut self, kernel: &ticket::Tickets, block: u32) {
        let wanted = (block + 1 + AHEAD).min(self.chain.blocks());
        while self.filled < wanted {
            let elements = self.chain.block(self.filled);
            if let Err(error) = kernel.fill(self.number, self.filled, &elements) {
                return tracing::error!(%error, "cannot fill a ticket");
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
        // Removing a spent block, which no longer exists, is no error.
        if let Err(error) = kernel.drop_block(self.number, block) {
            tracing::error!(%error, "cannot take a ticket's elements back");
        }
    }
}

#[cfg(test)]
mod tests {
    use usher_policy::Host;
    use usher_proto::host_key::HostPublicKey;

    use super::*;
    use crate::signer::asking::{LATE, PAUSE};

    const KEY: TicketKey = TicketKey {
        uid: 1001,
        server: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 143),
    };

    fn issued(number: u32) -> Issued {
        let host_key = HostPublicKey::from_bytes([1; _]);
        let host = Host {
            name: "here".parse().unwrap(),
            addresses: vec![KEY.server.ip()],
            keys: vec![host_key],
            ike_keys: Vec::new(),
            is_held: true,
            unlabelled: None,
            control: 3440,
            loopback: Vec::new(),
        };
        Issued {
            proven: false,
            number,
            session: SessionId::from_bytes([1; _]),
            chain: TokenChain::generate(64, [0; _], [0; _]),
            filled: 0,
            renewal: Renewal::NotYet,
            pair: Pair {
                key: SessionKey {
                    user: "alice".parse().unwrap(),
                    host: host.name.clone(),
                    identity: host_key,
                    service: "imap".parse().unwrap(),
                    server: KEY.server,
                },
                uid: KEY.uid,
                host,
            },
        }
    }

    #[test]
    fn five_failures_of_one_ticket_make_one_pause() {
        let (mut state, now) = (State::default(), Instant::now());
        assert!(state.asking.claim(KEY, now));
        state.asking.end(&KEY);
        state.issued.insert(KEY, issued(7));
        let taken = (0..5).filter(|_| state.suspend(KEY, 7, false, now).is_some());
        assert_eq!(taken.count(), 1);
        // The ticket was refused at once, so the pause is four times as long.
        assert!(
            state
                .asking
                .is_suspended(&KEY, now + PAUSE * 4 - Duration::from_secs(1))
        );
        assert!(!state.asking.is_suspended(&KEY, now + PAUSE * 4));
    }

    #[test]
    fn a_late_token_of_a_ticket_that_was_of_use_makes_a_short_pause() {
        let (mut state, now) = (State::default(), Instant::now());
        state.issued.insert(KEY, issued(7));
        assert!(state.suspend(KEY, 7, true, now).is_some());
        assert!(state.asking.is_suspended(&KEY, now));
        assert!(!state.asking.is_suspended(&KEY, now + LATE));
    }

    #[test]
    fn a_replaced_tickets_failure_leaves_the_new_one_alone() {
        let (mut state, now) = (State::default(), Instant::now());
        state.issued.insert(KEY, issued(8));
        assert!(state.suspend(KEY, 7, false, now).is_none());
        assert!(state.issued.contains_key(&KEY) && !state.asking.is_suspended(&KEY, now));
        assert!(state.suspend(KEY, 8, false, now).is_some());
        assert!(!state.issued.contains_key(&KEY) && state.asking.is_suspended(&KEY, now));
    }

    #[test]
    fn a_renewal_that_comes_to_nothing_may_be_tried_again() {
        let (state, now) = (Arc::new(Mutex::new(State::default())), Instant::now());
        let mut renewed = issued(7);
        renewed.renewal = Renewal::UnderWay;
        state.lock().issued.insert(KEY, renewed);
        assert_eq!(state.lock().asking.begin(KEY, now), Some(now));
        drop(TokenPermit {
            state: Arc::clone(&state),
            key: KEY,
            from: now,
        });
        let mut state = state.lock();
        assert!(state.issued[&KEY].renewal == Renewal::Failed);
        assert!(state.asking.begin(KEY, now).is_some());
    }
}
