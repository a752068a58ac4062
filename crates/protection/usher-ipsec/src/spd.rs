//! The entries of the SPD: from marks to templates.
//!
//! All our entries select by bits of our mask, and have priorities of our own band. These distinguish them
//! from entries of others, which are never touched. All have the direction `out`, except those that keep
//! plaintext of destinations away.

mod hashing;
mod messages;
mod wanted;

use std::collections::BTreeMap;

use ipnet::IpNet;
use netlink_packet_xfrm::policy::DelGetMessage;
use netlink_packet_xfrm::{UserPolicyId, XfrmMessage};

use crate::error::IpsecError;
use crate::marks::MarkMask;
use crate::netlink::{Channel, Ours};
use messages::{direction, mark, modification, ours, selector};
pub use wanted::asks_strangers;
pub(crate) use wanted::{asking, everywhere, of_former, of_held, wanted};

/// The treatment of a packet by an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It passes as it is.
    Allow,
    /// The call fails with EPERM.
    Block,
    /// It is protected by the SA with this request id.
    Protect {
        /// See [`reqid`](crate::reqid).
        reqid: u32,
        /// As long as there is no SA, packets pass as they are (`level use`).
        optional: bool,
    },
}

/// The packets that an entry selects: no two entries have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selected {
    /// Packets that come in. Else: that go out.
    pub inbound: bool,
    /// Outgoing packets to these addresses, or incoming packets from them.
    pub destination: IpNet,
    /// The port on this host; none: any.
    pub local_port: Option<u16>,
    /// The port of the other host; none: any.
    pub remote_port: Option<u16>,
    /// Packets of TCP. Else: of any protocol.
    pub tcp: bool,
    /// The value of the mark's bits.
    pub mark: u32,
    /// The bits of the mark that are compared.
    pub mark_bits: u32,
}

/// The action of an entry, and its place in the order of the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The lower, the earlier.
    pub priority: u32,
    /// None: the entry has a form that this version never makes.
    pub action: Option<Action>,
}

/// Entries by what they select.
pub type Entries = BTreeMap<Selected, Entry>;

/// The SPD of a network namespace, as far as it is ours.
#[derive(Debug)]
pub struct Spd {
    channel: Channel,
    mask: MarkMask,
}

impl Spd {
    /// The SPD of the caller's network namespace. Changes nothing yet.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(mask: MarkMask) -> Result<Self, IpsecError> {
        let channel = Channel::open()?;
        Ok(Self { channel, mask })
    }

    /// Distinguishes our changes and entries from those of others.
    pub(crate) fn ours(&self) -> Ours {
        Ours {
            port: self.channel.port(),
            mask: self.mask,
        }
    }

    /// Our entries, whoever has changed them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn entries(&mut self) -> Result<Entries, IpsecError> {
        let mask = self.mask;
        let all = self.channel.policies()?;
        let ours = all.iter().filter_map(|message| match message {
            XfrmMessage::AddPolicy(policy) => ours(policy, mask),
            _ => None,
        });
        Ok(ours.collect())
    }

    /// Adds and replaces what is missing or differs. Returns the number of changes, and the entries
    /// before them.
    ///
    /// # Errors
    /// The kernel's error; some are changed then.
    pub(crate) fn enter(&mut self, wanted: &Entries) -> Result<(usize, Entries), IpsecError> {
        self.hash_peers()?;
        let present = self.entries()?;
        let changes = self.enter_beside(wanted, &present)?;
        Ok((changes, present))
    }

    /// Removes all of our entries. Returns their number.
    ///
    /// # Errors
    /// The kernel's error; some are removed then.
    pub(crate) fn clear(&mut self) -> Result<usize, IpsecError> {
        let present = self.entries()?;
        let removed = self.retain_among(&Entries::new(), &present)?;
        self.hash_as_usual()?;
        Ok(removed)
    }

    /// Makes our entries equal to these. Returns the number of changes.
    ///
    /// # Errors
    /// The kernel's error; some are changed then.
    pub(crate) fn put_right(&mut self, wanted: &Entries) -> Result<usize, IpsecError> {
        self.hash_peers()?;
        let present = self.entries()?;
        let entered = self.enter_beside(wanted, &present)?;
        Ok(entered + self.retain_among(wanted, &present)?)
    }

    fn enter_beside(&mut self, wanted: &Entries, present: &Entries) -> Result<usize, IpsecError> {
        let mut missing: Vec<_> = wanted
            .iter()
            .filter(|(selected, entry)| present.get(selected) != Some(entry))
            .collect();
        // Entries for single peers first: the wide ones refuse mandatory traffic.
        missing.sort_by_key(|(selected, _)| std::cmp::Reverse(selected.destination.prefix_len()));
        for (selected, entry) in &missing {
            self.put(selected, entry)?;
        }
        Ok(missing.len())
    }

    /// Removes all of these that are not wanted. Returns their number.
    ///
    /// # Errors
    /// The kernel's error; some are removed then.
    pub(crate) fn retain_among(
        &mut self,
        wanted: &Entries,
        present: &Entries,
    ) -> Result<usize, IpsecError> {
        let present = present.keys();
        let mut changes = 0;
        for selected in present.filter(|selected| !wanted.contains_key(selected)) {
            self.remove(selected)?;
            changes += 1;
        }
        Ok(changes)
    }

    /// Removes an entry, or finds that somebody else has.
    pub(crate) fn remove(&mut self, selected: &Selected) -> Result<(), IpsecError> {
        const GONE: i32 = rustix::io::Errno::NOENT.raw_os_error();
        let delete = XfrmMessage::DeletePolicy(DelGetMessage {
            user_policy_id: UserPolicyId {
                selector: selector(selected),
                index: 0,
                direction: direction(selected),
            },
            nlas: vec![mark(selected)],
        });
        let removed = self.channel.request("remove an entry of the SPD", delete);
        match removed {
            Err(IpsecError::Netlink { error, .. }) if error.raw_os_error() == Some(GONE) => Ok(()),
            removed => removed,
        }
    }

    /// Adds an entry or replaces the one that selects the same. Either way, sockets look for their
    /// route and SA again.
    pub(crate) fn put(&mut self, selected: &Selected, entry: &Entry) -> Result<(), IpsecError> {
        let update = XfrmMessage::UpdatePolicy(modification(selected, entry));
        self.channel.request("change the SPD", update)
    }
}
