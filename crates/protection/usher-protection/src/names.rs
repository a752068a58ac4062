//! The present addresses of the names of hosts in `network` statements. The process that resolves
//! them keeps this table; the policy keeps the names.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use usher_base::HostName;
use usher_language::AddressRange;

use crate::limits::MAXIMUM_ADDRESSES;

/// The last answers for names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Names {
    answers: BTreeMap<HostName, Answer>,
}

/// The last answer for one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The addresses, in their order, none twice, at most [`MAXIMUM_ADDRESSES`].
    pub addresses: Vec<IpAddr>,
    /// How long ago it came. While a name cannot be resolved its last answer stays in force and
    /// grows older.
    #[serde(rename = "age_seconds", serialize_with = "seconds")]
    pub age: Duration,
}

impl Names {
    /// Takes an answer in the place of the former one. Of more than [`MAXIMUM_ADDRESSES`] the lowest
    /// are kept, so that the order of an answer changes nothing.
    pub fn answer(
        &mut self,
        name: HostName,
        addresses: impl IntoIterator<Item = IpAddr>,
        age: Duration,
    ) {
        let addresses = addresses.into_iter().map(|address| address.to_canonical());
        let mut addresses: Vec<IpAddr> = addresses.collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(MAXIMUM_ADDRESSES);
        self.answers.insert(name, Answer { addresses, age });
    }

    /// The last answer for a name; none if there never was one.
    pub fn get(&self, name: &HostName) -> Option<&Answer> {
        self.answers.get(name)
    }

    pub(crate) fn addresses(&self, name: &HostName) -> Vec<AddressRange> {
        let answer = self.answers.get(name);
        let addresses = answer.map_or(&[][..], |answer| &answer.addresses);
        addresses.iter().copied().map(AddressRange::from).collect()
    }
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(duration.as_secs())
}
