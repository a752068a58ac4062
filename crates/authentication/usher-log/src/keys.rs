//! Which key of a log signed where: a log's key may be changed, by a record that both keys sign.

use usher_proto::log_record::Says;
use usher_proto::{KeyChange, LogKey};

/// Limit of what [`Signers`] keeps: changes, and places at which ends begin to have another key.
const MAX_SIGNED: usize = 1 << 16;

/// What the log's keys have signed, in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Signers {
    signed: Vec<(u64, Signed)>,
    /// The first record that was too much.
    surplus: Option<u64>,
}

#[derive(Debug)]
enum Signed {
    /// The first of some ends by one key.
    Ends(LogKey),
    Change(KeyChange),
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
            Says::KeyChange(change) => Signed::Change(change.clone()),
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

    /// Adds what follows.
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
    pub(crate) fn judge(&self, last: LogKey, size: u64) -> (Keys, Option<u64>) {
        let mut former = Vec::new();
        let mut key = last;
        let mut wrong = self.surplus;
        // Backwards, because it is the last key that is known.
        for (index, signed) in self.signed.iter().rev() {
            match signed {
                Signed::Ends(signer) if *signer == key => {}
                // As the last record: the change is under way, or a crash has cut it short.
                Signed::Change(change)
                    if change.former == last && change.index == *index && index + 1 == size => {}
                Signed::Change(change) if change.next == key && change.index == *index => {
                    former.push((*index, change.former));
                    key = change.former;
                }
                Signed::Ends(_) | Signed::Change(_) => wrong = Some(*index),
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
    /// Whether one of them is this one.
    pub(crate) fn has(&self, key: LogKey) -> bool {
        key == self.last || self.former.iter().any(|(_, former)| *former == key)
    }

    /// The key that signs checkpoints of so many records.
    pub(crate) fn of_size(&self, size: u64) -> LogKey {
        let mut former = self.former.iter();
        former
            .find(|(change, _)| size <= *change)
            .map_or(self.last, |(_, key)| *key)
    }
}
