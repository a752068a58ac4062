//! SAs of the classes, as the kernel has them. charon makes them; this reads them, and orders those by which
//! this host sends.

mod order;

pub use order::OutboundSa;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_xfrm::constants::{
    XFRMA_ALG_AEAD, XFRMA_ALG_AUTH, XFRMA_ALG_AUTH_TRUNC, XFRMA_ALG_CRYPT,
};
use netlink_packet_xfrm::{Lifetime, UserSaInfo};
use usher_protection::Class;

use crate::error::IpsecError;
use crate::marks::{class_of, reqid};
use crate::netlink::{Channel, decode_address};

/// One SA: one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sa {
    /// Its number at the receiver.
    pub spi: u32,
    /// The bytes that it has carried.
    pub bytes: u64,
    /// In seconds since 1970: when the SA was made, or, if it has a place ([`Sad::place`]), when it was first
    /// used. One with a place that was never used has the present time.
    pub since: u64,
}

/// The SAs of all classes: for each sender, receiver and class the first, by the kernel's order, that has
/// carried traffic, or the first when none has. There may be several for a while: when they are rekeyed, and
/// when two hosts negotiate at the same time.
#[derive(Debug, Default)]
pub struct Sas(BTreeMap<(IpAddr, IpAddr, u32), Ordered>);

/// An SA, and its place in the kernel's order: the greater is taken first.
#[derive(Debug, Clone, Copy)]
struct Ordered {
    sa: Sa,
    place: u64,
}

impl Sas {
    /// The SA by which one address sends to another.
    #[must_use]
    pub fn between(&self, from: IpAddr, to: IpAddr, class: Class) -> Option<Sa> {
        let listed = self.0.get(&(from, to, reqid(class)));
        listed.map(|listed| listed.sa)
    }

    /// The receivers of all SAs, each with the class.
    #[must_use]
    pub fn receivers(&self) -> BTreeSet<(Class, IpAddr)> {
        let keys = self.0.keys();
        keys.filter_map(|(_, to, number)| Some((class_of(*number)?, *to)))
            .collect()
    }

    fn take(&mut self, info: &UserSaInfo, attributes: &[u16]) {
        let Some((from, to)) = ends(info, attributes) else {
            return;
        };
        let Lifetime {
            bytes,
            add_time,
            use_time,
            ..
        } = info.lifetime_cur;
        let sa = Sa {
            spi: info.id.spi,
            bytes,
            since: order::since(add_time, use_time),
        };
        let listed = Ordered {
            sa,
            place: add_time,
        };
        let known = self.0.entry((from, to, info.reqid)).or_insert(listed);
        let rank = |listed: &Ordered| (listed.sa.bytes > 0, listed.place);
        if rank(known) <= rank(&listed) {
            *known = listed;
        }
    }
}

/// The sender and the receiver of an SA of a class. None: the SA is incomplete, or not of a class.
fn ends(info: &UserSaInfo, attributes: &[u16]) -> Option<(IpAddr, IpAddr)> {
    const ALGORITHMS: [u16; 4] = [
        XFRMA_ALG_AUTH,
        XFRMA_ALG_CRYPT,
        XFRMA_ALG_AEAD,
        XFRMA_ALG_AUTH_TRUNC,
    ];
    let is_ours = class_of(info.reqid).is_some();
    // An SA that is being negotiated has no algorithm.
    let is_complete = attributes.iter().any(|kind| ALGORITHMS.contains(kind));
    let ends =
        decode_address(&info.saddr, info.family).zip(decode_address(&info.id.daddr, info.family));
    ends.filter(|_| is_ours && is_complete)
}

/// The SAs of a network namespace.
#[derive(Debug)]
pub struct Sad {
    channel: Channel,
    places: order::KnownPlaces,
}

impl Sad {
    /// The SAs of the caller's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> Result<Self, IpsecError> {
        Ok(Self {
            channel: Channel::open()?,
            places: order::KnownPlaces::default(),
        })
    }

    /// All SAs of the classes: the receiver's address and the SPI of each.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn spis(&mut self) -> Result<BTreeSet<(IpAddr, u32)>, IpsecError> {
        let mut spis = BTreeSet::new();
        self.channel.sas(|info, kinds| {
            spis.extend(ends(info, kinds).map(|(_, to)| (to, info.id.spi)));
        })?;
        Ok(spis)
    }

    /// See [`Sas`].
    pub(crate) fn list(&mut self) -> Result<Sas, IpsecError> {
        let mut sas = Sas::default();
        self.channel.sas(|info, kinds| sas.take(info, kinds))?;
        Ok(sas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_protection::{Kind, Profile};

    const CLASS: Class = Class::new(Kind::Encryption, Profile::Standard);

    /// An SA whose SPI says how many bytes it has carried.
    fn info(from: &str, to: &str, reqid: u32, spi: u32, since: u64) -> UserSaInfo {
        let mut info = UserSaInfo::default();
        info.source(&from.parse().unwrap());
        info.destination(&to.parse().unwrap());
        info.id.spi = spi;
        info.reqid = reqid;
        info.lifetime_cur.bytes = u64::from(spi) * 100;
        info.lifetime_cur.add_time = since;
        info
    }

    #[test]
    fn the_youngest_sa_of_a_class_is_listed() {
        let [a, b] = ["10.1.0.1", "10.1.0.2"];
        let ours = reqid(CLASS);
        let mut sas = Sas::default();
        for (info, attributes) in [
            (info(a, b, ours, 1, 50), &[XFRMA_ALG_AEAD][..]),
            (info(a, b, ours, 2, 60), &[XFRMA_ALG_AUTH_TRUNC]),
            (info(a, b, ours, 3, 40), &[XFRMA_ALG_AEAD]),
            // Still negotiated, and of somebody else.
            (info(a, b, ours, 4, 70), &[]),
            (info(a, b, 7, 5, 80), &[XFRMA_ALG_AEAD]),
        ] {
            sas.take(&info, attributes);
        }
        assert_eq!(
            sas.receivers(),
            BTreeSet::from([(CLASS, b.parse().unwrap())])
        );
        let between =
            |from: &str, to: &str| sas.between(from.parse().unwrap(), to.parse().unwrap(), CLASS);
        let expected = Sa {
            spi: 2,
            bytes: 200,
            since: 60,
        };
        assert_eq!(between(a, b), Some(expected));
        assert_eq!(between(b, a), None);
    }

    /// Two hosts that negotiate at the same time make two SAs for each direction.
    #[test]
    fn an_empty_sa_is_listed_only_where_no_other_is() {
        let [a, b]: [IpAddr; 2] = ["10.1.0.1", "10.1.0.2"].map(|address| address.parse().unwrap());
        let mut empty = info("10.1.0.1", "10.1.0.2", reqid(CLASS), 0, 70);
        empty.id.spi = 7;
        let used = info("10.1.0.1", "10.1.0.2", reqid(CLASS), 1, 60);
        for (order, expected) in [
            (&[&empty, &used][..], 1),
            (&[&used, &empty], 1),
            (&[&empty], 7),
        ] {
            let mut sas = Sas::default();
            for info in order {
                sas.take(info, &[XFRMA_ALG_AEAD]);
            }
            assert_eq!(sas.between(a, b, CLASS).unwrap().spi, expected);
        }
    }
}
