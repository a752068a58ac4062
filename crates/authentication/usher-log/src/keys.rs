//! Which key of a log signed where: a log's key may be changed, by a record that both keys sign.

use usher_proto::log_record::{RecordError, Says};
use usher_proto::{KeyChange, LogKey};

use crate::merkle::Hash;

/// Limit of entries of [`Signers`].
const MAX_SIGNED: usize = 1 << 16;

/// The ends of sessions and the changes of key, in the order of the log, and which key has signed each.
#[derive(Debug, Default)]
pub(crate) struct Signers {
    signed: Vec<(u64, Signed)>,
    /// The first record beyond [`MAX_SIGNED`].
    surplus: Option<u64>,
}

#[derive(Debug)]
enum Signed {
    /// The first of several ends by one key.
    Ends(LogKey),
    /// A change, and whether it is for the records before it.
    Change(KeyChange, bool),
}

impl Signers {
    /// Notes a record whose signature is valid.
    pub(crate) fn note(&mut self, index: u64, says: &Says) {
        let signed = match says {
            Says::Authentication(_) => return,
            Says::End(end) => {
                if let Some((_, Signed::Ends(key))) = self.signed.last()
                    && *key == end.key
                {
                    return;
                }
                Signed::Ends(end.key)
            }
            Says::KeyChange(change) => Signed::Change(change.clone(), false),
        };
        self.push(index, signed);
    }

    fn push(&mut self, index: u64, signed: Signed) {
        if self.signed.len() < MAX_SIGNED {
            self.signed.push((index, signed));
        } else {
            self.surplus.get_or_insert(index);
        }
    }

    /// Compares the root of the records before `index` with that of a change there.
    pub(crate) fn compare_root(&mut self, index: u64, root: impl Fn() -> Hash) {
        for (at, signed) in &mut self.signed {
            if let Signed::Change(change, is_here) = signed
                && *at == index
            {
                *is_here = change.index == index && change.root == root();
            }
        }
    }

    /// Whether the log has a change of key.
    pub(crate) fn has_change(&self) -> bool {
        self.signed
            .iter()
            .any(|(_, signed)| matches!(signed, Signed::Change(..)))
    }

    /// Adds the entries of the records that follow.
    pub(crate) fn append(&mut self, after: Self) {
        for (index, signed) in after.signed {
            if let (Some((_, Signed::Ends(before))), Signed::Ends(key)) =
                (self.signed.last(), &signed)
                && before == key
            {
                continue;
            }
            self.push(index, signed);
        }
        self.surplus = self.surplus.or(after.surplus);
    }

    /// The keys of a log of `size` records whose key is `last`, and the first record that was not signed by
    /// the key of its place.
    pub(crate) fn judge(&self, last: LogKey, size: u64) -> (Keys, Option<(u64, RecordError)>) {
        let mut former = Vec::new();
        let mut key = last;
        let mut wrong = self.surplus.map(|index| (index, RecordError::OtherLog));
        // Backwards, because only the last key is known.
        for (index, signed) in self.signed.iter().rev() {
            match signed {
                Signed::Ends(signer) if *signer == key => {}
                // A change that is the last record is under way, or a crash has cut it short.
                Signed::Change(change, true) if change.former == last && index + 1 == size => {}
                Signed::Change(change, true) if change.next == key => {
                    former.push((*index, change.former));
                    key = change.former;
                }
                Signed::Ends(_) => wrong = Some((*index, RecordError::OtherLog)),
                Signed::Change(..) => wrong = Some((*index, RecordError::UnsignedChange)),
            }
        }
        former.reverse();
        (Keys { former, last }, wrong)
    }
}

/// The keys of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Each former key, with the index of the record that ended it; the oldest first.
    pub(crate) former: Vec<(u64, LogKey)>,
    last: LogKey,
}

impl Keys {
    /// Whether this is one of the log's keys.
    pub(crate) fn has(&self, key: LogKey) -> bool {
        key == self.last || self.former.iter().any(|(_, former)| *former == key)
    }

    /// The key that signs checkpoints of `size` records.
    pub(crate) fn of_size(&self, size: u64) -> LogKey {
        let mut former = self.former.iter();
        former
            .find(|(change, _)| size <= *change)
            .map_or(self.last, |(_, key)| *key)
    }
}
