//! Sessions whose connections carry a token in the SYN, and their slots.
//!
//! The pinned table in the kernel is authoritative: [`Tokens::adopt`] reads it once when a keeper
//! starts, and finds the open slots, their sessions, and the recently closed slots. A slot's entry is
//! never deleted. A closed one is overwritten with zeros and the time from which on its slot may be
//! opened again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use usher_bpf::{Insertion, Plain, Table};
use usher_proto::SessionId;
use usher_proto::chain::MAX_CHAIN_LENGTH;
use usher_proto::token::{TOKEN_ELEMENT_SIZE, TOKEN_KEY_SIZE, TokenElement, TokenSlot};

use super::Admission;
use super::types::AdmissionState;
use crate::KernelError;
use crate::clock::{after, boot_time};
use crate::shared::admission::{ClientAddress, TokenSession as Entry};

/// The time for which a closed slot stays closed. Until then, late SYNs of its session find no session there;
/// later SYNs fail at the next session's key.
const REST: Duration = Duration::from_secs(16);

/// The data that checks the tokens of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenSession {
    /// The session.
    pub session: SessionId,
    /// The service whose port the session's connections go to.
    pub service: u32,
    /// The local account of the session's user.
    pub uid: u32,
    /// The keeper's number for the session's host, from whose addresses its connections come; see
    /// [`Admission::set_client_addresses`].
    pub host: u64,
    /// `t[0]` of the session's token chain.
    pub anchor: TokenElement,
    /// The chain's salt.
    pub salt: [u8; TOKEN_KEY_SIZE],
    /// The length of the chain: 1 to [`MAX_CHAIN_LENGTH`].
    pub length: u32,
    /// The secret that masks elements.
    pub key: [u8; TOKEN_KEY_SIZE],
    /// The time for which tokens are accepted, from now on.
    pub lifetime: Duration,
}

impl fmt::Debug for TokenSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TokenSession")
            .field("session", &self.session)
            .field("service", &self.service)
            .field("uid", &self.uid)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// Reasons that a session gets no slot. Its connections can still be announced.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Every slot is open, or was closed within the last 16 seconds.
    #[error("every slot for tokens is taken")]
    Full,
    /// The session already has a slot.
    #[error("the session has a slot for tokens already")]
    Exists,
    /// No chain has this length.
    #[error("cannot accept a token chain of {0} elements")]
    Length(u32),
    /// Another error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// An open slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRow {
    /// The slot.
    pub slot: TokenSlot,
    /// The session that has the slot.
    pub session: SessionId,
    /// The service.
    pub service: u32,
    /// The local account.
    pub uid: u32,
    /// The highest position of an accepted token; 0 before the first.
    pub position: u32,
    /// The length of the chain.
    pub length: u32,
}

/// The table, and the state of its slots.
#[derive(Debug)]
pub(super) struct Tokens {
    table: Table<u32, Entry>,
    slots: Mutex<Slots>,
}

/// Every slot below the limit is in exactly one of these sets.
#[derive(Debug)]
struct Slots {
    open: HashMap<SessionId, TokenSlot>,
    /// Closed, in the order of the boot time in nanoseconds from which on they may be opened again.
    closed: VecDeque<(u64, TokenSlot)>,
    /// Slots without an entry in the table; the lowest last.
    unused: Vec<TokenSlot>,
}

impl Tokens {
    /// The table as an earlier keeper left it.
    pub(super) fn adopt(table: Table<u32, Entry>, limit: u32) -> Result<Self, KernelError> {
        let mut used = vec![false; limit as usize];
        let mut open = HashMap::new();
        let mut closed = Vec::new();
        for (number, tokens) in table.entries()? {
            let slot = TokenSlot::new(number);
            let (Some(slot), Some(used)) = (slot, used.get_mut(number as usize)) else {
                return Err(KernelError::UnreadableEntry("tokens"));
            };
            *used = true;
            if tokens.length == 0 {
                closed.push((tokens.expires_ns, slot));
            } else {
                open.insert(SessionId::from_bytes(tokens.session), slot);
            }
        }
        closed.sort_unstable();
        let unused = (0..limit)
            .rev()
            .filter(|number| !used[*number as usize])
            .filter_map(TokenSlot::new)
            .collect();
        let slots = Mutex::new(Slots {
            open,
            closed: closed.into(),
            unused,
        });
        Ok(Self { table, slots })
    }

    fn open(&self, session: &TokenSession) -> Result<TokenSlot, TokenError> {
        if session.length == 0 || session.length > MAX_CHAIN_LENGTH {
            return Err(TokenError::Length(session.length));
        }
        let now = boot_time();
        let mut slots = self.slots.lock();
        if slots.open.contains_key(&session.session) {
            return Err(TokenError::Exists);
        }
        let entry = Entry::opened(session, now);
        let rested = slots.closed.front().filter(|(from, _)| *from <= now);
        let slot = if let Some((_, slot)) = rested.copied() {
            self.table.replace_locked(&slot.number(), &entry)?;
            slots.closed.pop_front();
            slot
        } else {
            let slot = *slots.unused.last().ok_or(TokenError::Full)?;
            match self.table.insert(&slot.number(), &entry)? {
                Insertion::Done => {}
                Insertion::Full => return Err(TokenError::Full),
                // No other process writes the table.
                Insertion::Exists => {
                    return Err(KernelError::UnreadableEntry("tokens").into());
                }
            }
            slots.unused.pop();
            slot
        };
        slots.open.insert(session.session, slot);
        Ok(slot)
    }

    fn close(&self, session: &SessionId) -> Result<bool, KernelError> {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.open.get(session).copied() else {
            return Ok(false);
        };
        let again = after(boot_time(), REST);
        self.table
            .replace_locked(&slot.number(), &Entry::closed(again))?;
        slots.open.remove(session);
        slots.closed.push_back((again, slot));
        Ok(true)
    }
}

impl Entry {
    fn closed(again: u64) -> Self {
        Self {
            expires_ns: again,
            ..Self::zeroed()
        }
    }

    fn opened(session: &TokenSession, now: u64) -> Self {
        let mut value = [0; 16];
        value[..TOKEN_ELEMENT_SIZE].copy_from_slice(&session.anchor);
        Self {
            service: session.service,
            uid: session.uid,
            length: session.length,
            host: session.host,
            // The anchor is not a token.
            window: [1, 0],
            value,
            salt: session.salt,
            key: session.key,
            session: *session.session.as_bytes(),
            ..Self::closed(after(now, session.lifetime))
        }
    }
}

impl Admission {
    /// Sets the addresses from which tokens admit the hosts' connections, and replaces the former ones.
    /// Adds first, then removes.
    ///
    /// # Errors
    /// [`KernelError::Full`]: addresses without room are left out, and nothing has been removed.
    /// Otherwise the kernel's error.
    pub fn set_client_addresses(&self, addresses: &[(u64, IpAddr)]) -> Result<(), KernelError> {
        let wanted = addresses
            .iter()
            .map(|&(host, address)| (ClientAddress::new(host, address), 1));
        self.client_addresses.assign(&wanted.collect())
    }

    /// Corrects the number of each user's connections that tokens have admitted and that are not
    /// established: the programs do not see connections that never arrive. Call it once a second.
    pub fn recount_outstanding(&self) -> Result<(), KernelError> {
        let counted = self.outstanding.entries()?;
        // A count is below zero for a moment if another correction came in between.
        if counted.iter().all(|(_, count)| *count == 0) {
            return Ok(());
        }
        let mut present: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for row in self.admissions()? {
            if row.by_token && row.state != AdmissionState::Established {
                *present.entry((row.service, row.uid)).or_default() += 1;
            }
        }
        for (target, _) in counted {
            let count = present.get(&(target.service, target.uid)).unwrap_or(&0);
            self.outstanding.set(&target, count)?;
        }
        Ok(())
    }

    /// Admits the session's connections by tokens, and returns the slot that they name. Slots are pinned
    /// with the other tables: a restarted keeper continues where the last one was, see
    /// [`Admission::tokens`].
    ///
    /// # Errors
    /// See [`TokenError`]; nothing has then changed.
    pub fn open_tokens(&self, session: &TokenSession) -> Result<TokenSlot, TokenError> {
        self.tokens.open(session)
    }

    /// Closes the session's slot; false if it had none. When this returns, every connection that the
    /// session's tokens have admitted is in [`Admission::admissions`], or the kernel withdraws it: a
    /// revocation looks there afterwards.
    ///
    /// # Errors
    /// The kernel's error; tokens are then still accepted.
    pub fn close_tokens(&self, session: &SessionId) -> Result<bool, KernelError> {
        self.tokens.close(session)
    }

    /// All open slots, including those of an earlier keeper. Reads the whole table.
    ///
    /// # Errors
    /// The kernel's error, or [`KernelError::UnreadableEntry`].
    pub fn tokens(&self) -> Result<Vec<TokenRow>, KernelError> {
        const UNREADABLE: KernelError = KernelError::UnreadableEntry("tokens");
        let mut rows = Vec::new();
        for (number, tokens) in self.tokens.table.entries()? {
            if tokens.length > 0 {
                rows.push(TokenRow {
                    slot: TokenSlot::new(number).ok_or(UNREADABLE)?,
                    session: SessionId::from_bytes(tokens.session),
                    service: tokens.service,
                    uid: tokens.uid,
                    position: tokens.tip,
                    length: tokens.length,
                });
            }
        }
        Ok(rows)
    }
}
