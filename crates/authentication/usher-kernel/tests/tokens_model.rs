//! The window of accepted positions against a model, over random sequences of tokens. Keys, salts,
//! seeds and endpoints are random too, so hash and mask are compared with those in Rust.
//!
//! Threat model: A13

#[macro_use]
mod world;
mod forge;

use std::cell::Cell;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use forge::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use usher_base::ConnectionTuple;
use usher_kernel::admission::{Admission, Counters, Limits};
use usher_proto::{SessionId, TokenSlot};
use world::token::Token;
use world::*;

/// The content of a SYN.
#[derive(Debug, Clone)]
enum Sent {
    /// The right element, at this distance from the tip.
    Right(i32),
    /// The element of one position at another: their distances from the tip.
    Displaced(i32, i32),
    /// An element outside the chain, under the right mask.
    Wrong(i32, [u8; 11]),
    /// Meaningless bytes.
    Garbage(u8, [u8; 12]),
    /// The last SYN again.
    Again,
}

fn sent() -> impl Strategy<Value = Sent> {
    let near = || prop_oneof![4 => 1..4_i32, 4 => -8..12_i32, 2 => -140..140_i32];
    prop_oneof![
        12 => near().prop_map(Sent::Right),
        1 => prop_oneof![Just(127), Just(128), Just(129), Just(-126), Just(-127), Just(-128)]
            .prop_map(Sent::Right),
        2 => (near(), near()).prop_map(|(place, element)| Sent::Displaced(place, element)),
        1 => (near(), any::<[u8; 11]>()).prop_map(|(place, element)| Sent::Wrong(place, element)),
        1 => (any::<u8>(), any::<[u8; 12]>()).prop_map(|(low, bytes)| Sent::Garbage(low, bytes)),
        1 => Just(Sent::Again),
    ]
}

fn ends() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        (any::<[u8; 4]>(), any::<[u8; 4]>())
            .prop_filter("unspecified", |(from, to)| *from != [0; 4] && *to != [0; 4])
            .prop_map(|(from, to)| (from.into(), to.into())),
        (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(from, to)| (from.into(), to.into())),
    ]
}

/// The state that the kernel should have.
struct Model<'chain> {
    chain: &'chain Chain,
    tip: i64,
    accepted: HashSet<i64>,
    /// Endpoints that have an entry.
    admitted: HashSet<ConnectionTuple>,
}

impl Model<'_> {
    /// Predicts the program's counters, and updates the model.
    fn expect(&mut self, bytes: &[u8; 16], connection: &ConnectionTuple, counters: &mut Counters) {
        let length = i64::from(self.chain.session.length);
        if self.admitted.contains(connection) {
            counters.token_repeated += 1;
            return;
        }
        let Some(token) = Token::decode(bytes, &self.chain.session.key, connection) else {
            counters.token_foreign += 1;
            return;
        };
        let position = (self.tip - 127..=self.tip + 128)
            .find(|position| position.rem_euclid(256) == i64::from(token.position))
            .unwrap();
        if position < 1 || position > length {
            counters.token_out_of_range += 1;
        } else if self.accepted.contains(&position) {
            counters.token_replayed += 1;
        } else if self.chain.element(u32::try_from(position).unwrap()) != token.element {
            counters.token_mismatch += 1;
        } else {
            counters.token_accepted += 1;
            self.accepted.insert(position);
            self.tip = self.tip.max(position);
            self.admitted.insert(*connection);
        }
    }

    fn at(&self, distance: i32) -> u32 {
        let length = i64::from(self.chain.session.length);
        u32::try_from((self.tip + i64::from(distance)).clamp(1, length)).unwrap()
    }

    fn bytes(&self, sent: &Sent, slot: TokenSlot, connection: &ConnectionTuple) -> [u8; 16] {
        let (place, element) = match sent {
            Sent::Right(distance) => (self.at(*distance), self.chain.element(self.at(*distance))),
            Sent::Displaced(place, element) => {
                (self.at(*place), self.chain.element(self.at(*element)))
            }
            Sent::Wrong(place, element) => (self.at(*place), *element),
            Sent::Garbage(low, garbage) => {
                let mut bytes = [0; 16];
                bytes[1..3].copy_from_slice(&slot.number().to_be_bytes()[2..]);
                bytes[3] = *low;
                bytes[4..].copy_from_slice(garbage);
                return bytes;
            }
            Sent::Again => unreachable!("handled before"),
        };
        let position = place.to_le_bytes()[0];
        Token {
            slot,
            position,
            element,
        }
        .encode(&self.chain.session.key, connection)
    }
}

fn follow(
    admission: &Admission,
    checker: &Checker,
    chain: &Chain,
    (from, to): (IpAddr, IpAddr),
    sequence: &[Sent],
) -> Counters {
    let slot = admission.open_tokens(&chain.session).unwrap();
    admission
        .set_client_addresses(&[(chain.session.host, from)])
        .unwrap();
    let mut model = Model {
        chain,
        tip: 0,
        accepted: HashSet::new(),
        admitted: HashSet::new(),
    };
    let mut expected = admission.counters().unwrap();
    let mut last = None;
    for (sent, port) in sequence.iter().zip(1..) {
        let (bytes, connection) = match (sent, last) {
            (Sent::Again, Some(last)) => last,
            (Sent::Again, None) => continue,
            _ => {
                let end = SocketAddr::new(to, PORT);
                let connection = ConnectionTuple::new(SocketAddr::new(from, port), end).unwrap();
                (model.bytes(sent, slot, &connection), connection)
            }
        };
        last = Some((bytes, connection));
        model.expect(&bytes, &connection, &mut expected);
        checker.syn(&connection, &option(&bytes));
        assert_eq!(
            admission.counters().unwrap(),
            expected,
            "{sent:?} from {}",
            model.tip
        );
        let admitted = admission.admission(&connection).unwrap();
        assert_eq!(admitted.is_some(), model.admitted.contains(&connection));
    }
    let rows = admission.tokens().unwrap();
    let tip = rows.iter().find(|row| row.slot == slot).unwrap().position;
    assert_eq!(i64::from(tip), model.tip);
    assert!(admission.close_tokens(&chain.session.session).unwrap());
    for connection in &model.admitted {
        admission.forget(connection).unwrap();
    }
    expected
}

tests_of_tokens! {
    fn the_window_is_the_models(world) {
        // Enough cases to reach every result.
        let cases = rounds(64).max(16);
        let limits = Limits { admissions: 4096, tokens: 2 * cases, ..world_limits() };
        let (admission, _alice, checker) = serve(world, &limits);
        let syns = Cell::new(0_usize);
        let strategy = (
            any::<[[u8; 16]; 3]>(),
            any::<[u8; 11]>(),
            prop_oneof![1..300_u32, 500..900_u32],
            ends(),
            prop::collection::vec(sent(), 200..300),
        );
        let config = Config {
            cases,
            max_shrink_iters: 0,
            failure_persistence: None,
            ..Config::default()
        };
        let counters = Cell::new(Counters::default());
        TestRunner::new(config)
            .run(&strategy, |([session, salt, key], seed, length, ends, sequence)| {
                let session = SessionId::from_bytes(session);
                let chain = Chain::generate(session, length, seed, salt, key);
                counters.set(follow(&admission, &checker, &chain, ends, &sequence));
                syns.set(syns.get() + sequence.len());
                Ok(())
            })
            .unwrap();
        assert!(syns.get() >= 200 * cases as usize, "{} SYNs", syns.get());
        let counters = counters.get();
        eprintln!("{} SYNs: {counters:?}", syns.get());
        // The sequences reach every result.
        for count in [
            counters.token_accepted,
            counters.token_repeated,
            counters.token_foreign,
            counters.token_out_of_range,
            counters.token_replayed,
            counters.token_mismatch,
        ] {
            assert!(count >= u64::from(cases / 2), "{counters:?}");
        }
    }
}

fn world_limits() -> Limits {
    Limits {
        sessions: 16,
        admissions: 64,
        listeners: 16,
        tokens: 64,
    }
}
