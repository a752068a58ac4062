//! The SA by which the kernel sends, where there are several of a class with a peer.
//!
//! The entries of the SPD name only the class. Of the SAs of a class the kernel sends by the youngest, by the
//! time that it keeps with each (`xfrm_state_look_at`, `add_time`). While charon rekeys, the youngest is wrong
//! on the host that answers: charon puts its new SA into the kernel before the other host has the keys, and
//! packets that are sent by it until then are lost. (Policies that charon makes itself name the SA.) So the
//! SA by which this host sends gets a *place*, a time ahead of the clock: the kernel sends by it until charon
//! removes it. charon does so when the other host has the next SA; no moment is left between the two.
//!
//! A new SA that this host has asked for is placed before all others, because the other host has it by then; a
//! new SA that this host has granted is placed behind all others. If both hosts rekey at once, there are two.
//! The host whose own SA stays gets that one last, so the kernel takes it as the younger one in any case. The
//! other host may send by both; the SA that it has granted gets its place when the former one is gone.
//!
//! The time is set with XFRM_MSG_NEWAE (Linux 2.6.17), which needs no keys. The kernel also reckons from it when an
//! SA is to be rekeyed and when it ends, so both come later for SAs with a place; charon is reminded by the
//! SA of the other direction, whose time stays, and ends both.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use netlink_packet_xfrm::constants::{IPPROTO_AH, IPPROTO_ESP};
use netlink_packet_xfrm::{Lifetime, UserSaId};

use super::{Sad, ends};
use crate::error::IpsecError;

/// How many seconds the first place is ahead of the clock: more than an SA lives (66 minutes by charon's
/// default), so that an SA that is made meanwhile is behind.
const AHEAD: u64 = 2 * 3600;

/// Sender, receiver and reqid.
type Stream = (IpAddr, IpAddr, u32);

/// The places that are known: times by SPI.
#[derive(Debug, Default)]
pub(super) struct KnownPlaces(BTreeMap<Stream, BTreeMap<u32, u64>>);

/// An SA by which this host sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboundSa {
    /// Its receiver.
    pub to: IpAddr,
    /// Its SPI.
    pub spi: u32,
    /// Its protocol is AH. Else: ESP.
    pub is_ah: bool,
}

impl OutboundSa {
    fn id(&self) -> UserSaId {
        let mut id = UserSaId {
            spi: self.spi,
            proto: if self.is_ah { IPPROTO_AH } else { IPPROTO_ESP },
            ..UserSaId::default()
        };
        id.destination(&self.to);
        id
    }
}

impl Sad {
    /// Returns whether the kernel has this SA.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn has(&mut self, sa: OutboundSa) -> Result<bool, IpsecError> {
        Ok(self.channel.lifetime(sa.id())?.is_some())
    }

    /// Places an SA, unless another one of its class with the same peer has a place.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn place(&mut self, sa: OutboundSa) -> Result<(), IpsecError> {
        let now = now();
        let Some((stream, lifetime)) = self.find(sa)? else {
            return Ok(());
        };
        let place = lifetime.add_time;
        let is_alone = self.others(stream, sa, now)?.is_empty();
        // Renewed in time: an SA that is made when the place is over would come first.
        if is_alone && place <= now + AHEAD / 2 {
            return self.set(stream, sa, lifetime, now + AHEAD);
        }
        if place > now {
            self.know(stream, sa, place);
        }
        Ok(())
    }

    fn know(&mut self, stream: Stream, sa: OutboundSa, place: u64) {
        let places = self.places.0.entry(stream).or_default();
        places.insert(sa.spi, place);
    }

    /// Places an SA behind all others of its class with the same peer.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn place_last(&mut self, sa: OutboundSa) -> Result<(), IpsecError> {
        let now = now();
        let Some((stream, lifetime)) = self.find(sa)? else {
            return Ok(());
        };
        if lifetime.add_time > now {
            self.know(stream, sa, lifetime.add_time);
            return Ok(());
        }
        let others = self.others(stream, sa, now)?;
        let time = others
            .into_iter()
            .min()
            .map_or(now + AHEAD, |first| first - 1);
        self.set(stream, sa, lifetime, time)
    }

    /// Places an SA before all others of its class with the same peer. Sockets look for their SA again when
    /// the SPD changes: see [`Ipsec::announce_sa`](crate::Ipsec::announce_sa).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn place_first(&mut self, sa: OutboundSa) -> Result<(), IpsecError> {
        let now = now();
        let Some((stream, lifetime)) = self.find(sa)? else {
            return Ok(());
        };
        let others = self.others(stream, sa, now)?;
        let last = others.into_iter().max();
        let own = lifetime.add_time;
        if own > now && last.is_none_or(|last| own > last) {
            return Ok(());
        }
        let time = last.map_or(now + AHEAD, |last| last + 1);
        self.set(stream, sa, lifetime, time)
    }

    /// Takes the places away from all SAs of the classes except the known ones, by receiver and SPI, whose
    /// places it notes. A charon that was killed leaves its SAs in the kernel; those that the next one makes
    /// must come before them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn keep_places(&mut self, known: impl Fn(IpAddr, u32) -> bool) -> Result<(), IpsecError> {
        let now = now();
        let (mut kept, mut left) = (Vec::new(), Vec::new());
        self.channel.sas(|info, kinds| {
            let of_class = ends(info, kinds).filter(|_| info.lifetime_cur.add_time > now);
            if let Some((from, to)) = of_class {
                let sa = OutboundSa {
                    to,
                    spi: info.id.spi,
                    is_ah: info.id.proto == IPPROTO_AH,
                };
                let placed = ((from, to, info.reqid), sa, info.lifetime_cur);
                if known(to, sa.spi) {
                    kept.push(placed)
                } else {
                    left.push(placed)
                }
            }
        })?;
        // Places that an earlier process has given.
        for (stream, sa, lifetime) in kept {
            self.know(stream, sa, lifetime.add_time);
        }
        for (stream, sa, lifetime) in left {
            self.set(stream, sa, lifetime, now)?;
            if let Some(places) = self.places.0.get_mut(&stream) {
                places.remove(&sa.spi);
            }
        }
        self.places.0.retain(|(_, to, _), places| {
            places.retain(|spi, _| known(*to, *spi));
            !places.is_empty()
        });
        Ok(())
    }

    /// The stream of an SA, and its present lifetime; none: the kernel does not have it.
    fn find(&mut self, sa: OutboundSa) -> Result<Option<(Stream, Lifetime)>, IpsecError> {
        let found = self.channel.lifetime(sa.id())?;
        Ok(found.map(|found| ((found.from, sa.to, found.reqid), found.lifetime)))
    }

    /// The places of the other SAs of a stream that the kernel still has.
    fn others(&mut self, stream: Stream, sa: OutboundSa, now: u64) -> Result<Vec<u64>, IpsecError> {
        let known = self.places.0.remove(&stream).unwrap_or_default();
        let mut there = BTreeMap::new();
        for (spi, place) in known.into_iter().filter(|(_, place)| *place > now) {
            let other = OutboundSa { spi, ..sa };
            if spi == sa.spi || self.channel.lifetime(other.id())?.is_some() {
                there.insert(spi, place);
            }
        }
        let others = there.iter().filter(|(spi, _)| **spi != sa.spi);
        let places = others.map(|(_, place)| *place).collect();
        self.places.0.insert(stream, there);
        Ok(places)
    }

    fn set(
        &mut self,
        stream: Stream,
        sa: OutboundSa,
        lifetime: Lifetime,
        time: u64,
    ) -> Result<(), IpsecError> {
        let placed = Lifetime {
            add_time: time,
            ..lifetime
        };
        if self.channel.set_lifetime(sa.id(), placed)? {
            let places = self.places.0.entry(stream).or_default();
            places.insert(sa.spi, time);
        }
        Ok(())
    }
}

/// The time since which an SA exists, by its times: one with a place has lost the time when it was
/// made.
pub(super) fn since(add_time: u64, use_time: u64) -> u64 {
    let now = now();
    match add_time > now {
        true if use_time > 0 => use_time,
        true => now,
        false => add_time,
    }
}

/// As the kernel reckons: in seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
