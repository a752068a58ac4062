//! The order in which a host's addresses are tried for a user.
//!
//! First comes the address at which the host's control channel is open, then those of the policy in their
//! order. Addresses to which the user's own programs found no way come last for a while. Other users'
//! programs have no influence.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long an address comes last: longer than all addresses of a host may be tried, each for ten seconds.
const LAST: Duration = Duration::from_secs(120);
/// Limit of the notes of all users together. At the limit nothing is noted until notes expire; meanwhile an
/// unreachable address is tried in its usual place.
const NOTES: usize = 4096;
/// Limit of one user's notes.
const NOTES_OF_USER: usize = 256;

/// Addresses of services to which users' programs found no way.
#[derive(Default)]
pub struct Ways {
    none: Mutex<HashMap<(u32, SocketAddr), Instant>>,
}

impl Ways {
    /// Notes that a program of the user has found no way to this address.
    pub fn note_none(&self, uid: u32, server: SocketAddr) {
        let (mut none, now) = (self.none.lock(), Instant::now());
        none.retain(|_, since| now.duration_since(*since) < LAST);
        let own = none.keys().filter(|(owner, _)| *owner == uid).count();
        let has_room = none.len() < NOTES && own < NOTES_OF_USER;
        if has_room || none.contains_key(&(uid, server)) {
            none.insert((uid, server), now);
        }
    }

    /// The addresses in the order in which to try them for a service at this port. `channel`: where the
    /// host's control channel is open.
    pub fn order(
        &self,
        uid: u32,
        port: u16,
        addresses: &[IpAddr],
        channel: Option<IpAddr>,
    ) -> Vec<IpAddr> {
        let none = self.none.lock();
        let mut ordered = addresses.to_vec();
        ordered.sort_by_key(|ip| {
            let since = none.get(&(uid, SocketAddr::new(*ip, port)));
            let since = since.filter(|since| since.elapsed() < LAST);
            // Among those without a way the one that was tried longest ago is first.
            (since.copied(), Some(*ip) != channel)
        });
        ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const THIRD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));
    const ALL: [IpAddr; 3] = [FIRST, SECOND, THIRD];

    #[test]
    fn the_channels_address_is_first_and_then_the_policys_order() {
        let ways = Ways::default();
        assert_eq!(ways.order(1, 143, &ALL, None), ALL);
        let order = ways.order(1, 143, &ALL, Some(THIRD));
        assert_eq!(order, [THIRD, FIRST, SECOND]);
        let foreign = [192, 0, 2, 1].into();
        assert_eq!(ways.order(1, 143, &ALL, Some(foreign)), ALL);
    }

    // Threat model: A169
    #[test]
    fn an_address_without_a_way_is_last_for_its_user_and_service() {
        let ways = Ways::default();
        for ip in [FIRST, SECOND] {
            ways.note_none(1, (ip, 143).into());
        }
        let order = ways.order(1, 143, &ALL, Some(FIRST));
        assert_eq!(order, [THIRD, FIRST, SECOND]);
        for (uid, port) in [(2, 143), (1, 144)] {
            assert_eq!(ways.order(uid, port, &ALL, None), ALL);
        }
    }

    // Threat model: A169
    #[test]
    fn notes_are_limited_and_one_user_leaves_room_for_others() {
        let ways = Ways::default();
        let server = |port: usize| (FIRST, u16::try_from(port).unwrap()).into();
        for port in 0..2 * NOTES_OF_USER {
            ways.note_none(1, server(port));
        }
        assert_eq!(ways.none.lock().len(), NOTES_OF_USER);
        ways.note_none(2, server(143));
        assert_eq!(ways.order(2, 143, &ALL, None), [SECOND, THIRD, FIRST]);
        for uid in 3..=u32::try_from(NOTES).unwrap() {
            ways.note_none(uid, server(143));
        }
        assert_eq!(ways.none.lock().len(), NOTES);
    }
}
