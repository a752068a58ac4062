//! Tokens are accepted or refused in SYNs that the test passes to the program.
//!
//! Threat model: A8, A13

#[macro_use]
mod world;
mod forge;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use forge::*;
use usher_base::ConnectionTuple;
use usher_kernel::admission::{Admission, AdmissionState, Announced, Counters, Limits};
use usher_proto::TokenSlot;
use world::*;

const LIMITS: Limits = Limits {
    sessions: 16,
    admissions: 4096,
    listeners: 16,
    tokens: 64,
};

tests_of_tokens! {
    fn a_token_admits_its_connection_once(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        for (position, connection) in [(1, from_port(4001)), (2, from_port_v6(4002))] {
            let option = chain.option(slot, position, &connection);
            checker.syn(&connection, &option);
            let entry = row(&admission, &connection).unwrap();
            assert_eq!(entry.state, AdmissionState::Announced);
            assert_eq!((entry.service, entry.uid), (SERVICE, ALICE));
            assert_eq!(entry.session, chain.session.session);
            // A retransmission.
            checker.syn(&connection, &option);
            assert_eq!(row(&admission, &connection), Some(entry));
            // The connection is over, and its SYN comes again.
            admission.forget(&connection).unwrap();
            checker.syn(&connection, &option);
            assert_eq!(row(&admission, &connection), None);
        }
        assert_eq!(admission.tokens().unwrap()[0].position, 2);
        counted(&admission, Counters {
            token_accepted: 2, token_repeated: 2, token_replayed: 2, ..Counters::default()
        });
    }

    // Threat model: A48
    fn an_entry_is_for_the_tokens_syn_and_ends_when_another_comes(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        let connection = from_port(4001);
        let frame = |options: &[u8], sequence| ethernet(&numbered(ip(&connection, SYN, options), sequence));
        let first = chain.option(slot, 1, &connection);
        checker.run(&frame(&first, 7));
        // A copy of the SYN, with the option or without, as if it was removed on the way.
        checker.run(&frame(&first, 7));
        checker.run(&frame(&[], 7));
        assert!(row(&admission, &connection).is_some());
        // The SYN of another user who has got the port.
        checker.run(&frame(&[], 8));
        assert_eq!(row(&admission, &connection), None);
        // The owner's next attempt replaces the former one.
        let second = chain.option(slot, 2, &connection);
        checker.run(&frame(&second, 9));
        let third = chain.option(slot, 3, &connection);
        checker.run(&frame(&third, 10));
        assert!(row(&admission, &connection).is_some());
        counted(&admission, Counters {
            token_accepted: 3, token_repeated: 1, token_other_syn: 1, token_replaced: 1,
            ..Counters::default()
        });
    }

    // Threat model: A43
    fn an_announced_entry_is_for_the_first_syn_and_its_copies(world) {
        let (admission, _alice, checker) = serve(world, &LIMITS);
        let connection = from_port(4002);
        admission.announce(&connection, &announced(ALICE)).unwrap();
        let syn = |sequence| ethernet(&numbered(ip(&connection, SYN, &[]), sequence));
        checker.run(&syn(1));
        checker.run(&syn(1));
        assert!(row(&admission, &connection).is_some());
        checker.run(&syn(2));
        assert_eq!(row(&admission, &connection), None);
        counted(&admission, Counters { token_other_syn: 1, ..Counters::default() });
    }

    fn a_good_token_replaces_anothers_announcement(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        let holder = |connection: &ConnectionTuple| row(&admission, connection).map(|row| (row.uid, row.by_token));
        let mut position = 0;
        for port in [4001, 4002] {
            let connection = from_port(port);
            admission.announce(&connection, &announced(BOB)).unwrap();
            if port == 4002 {
                // Bob's SYN has come.
                checker.run(&ethernet(&numbered(ip(&connection, SYN, &[]), 7)));
            }
            // An invalid token changes nothing while no SYN has come.
            let mut bad = chain.option(slot, position + 1, &connection);
            bad[19] ^= 1;
            if port == 4001 {
                checker.run(&ethernet(&numbered(ip(&connection, SYN, &bad), 8)));
                assert_eq!(holder(&connection), Some((BOB, false)));
            }
            position += 1;
            let good = chain.option(slot, position, &connection);
            checker.run(&ethernet(&numbered(ip(&connection, SYN, &good), 9)));
            assert_eq!(holder(&connection), Some((ALICE, true)), "{port}");
        }
        // An announcement of the same session stands, and no token is spent for it.
        let connection = from_port(4003);
        let own = Announced { session: chain.session.session, ..announced(ALICE) };
        admission.announce(&connection, &own).unwrap();
        checker.syn(&connection, &chain.option(slot, 3, &connection));
        assert_eq!(holder(&connection), Some((ALICE, false)));
        assert_eq!(admission.tokens().unwrap()[0].position, 2);
        counted(&admission, Counters {
            token_accepted: 2, token_replaced: 2, token_foreign: 1, token_repeated: 1,
            ..Counters::default()
        });
    }

    // Threat model: A28
    fn a_token_comes_from_its_hosts_addresses(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        let mut port = 4000;
        let mut send = |position| {
            port += 1;
            let connection = from_port(port);
            checker.syn(&connection, &chain.option(slot, position, &connection));
            row(&admission, &connection).is_some()
        };
        assert!(send(1));
        let address = from_port(1).client.ip();
        // The address now belongs to another host, then to none.
        for addresses in [&[(HOST + 1, address)][..], &[]] {
            admission.set_client_addresses(addresses).unwrap();
            assert!(!send(2));
        }
        admission.set_client_addresses(&[(HOST, address)]).unwrap();
        assert!(send(2));
        counted(&admission, Counters {
            token_accepted: 2, token_other_address: 2, ..Counters::default()
        });
    }

    // Threat model: A35
    fn a_user_has_a_share_of_connections_that_do_not_come(world) {
        if is_emulated() {
            println!("skipped a_user_has_a_share_of_connections_that_do_not_come: its thousands of \
                SYNs take minutes in an emulated machine");
            return;
        }
        let (admission, _alice, checker) = serve(world, &Limits { admissions: 8192, ..LIMITS });
        let _bob = queue(&admission, BOB, 16);
        let chain = Chain::new(1, 6000);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let mut bobs = Chain::new(2, 100);
        bobs.session.uid = BOB;
        let bobs_slot = admission.open_tokens(&bobs.session).unwrap();
        let send = |chain: &Chain, slot, position: u32| {
            let connection = from_port(u16::try_from(position).unwrap() + 1000);
            checker.syn(&connection, &chain.option(slot, position, &connection));
            row(&admission, &connection).is_some_and(|row| row.session == chain.session.session)
        };
        for position in 1..=4096 {
            assert!(send(&chain, slot, position), "{position}");
        }
        assert!(!send(&chain, slot, 4097));
        // Another user is admitted between other endpoints.
        let connection = from_port(9000);
        checker.syn(&connection, &bobs.option(bobs_slot, 1, &connection));
        assert!(row(&admission, &connection).is_some());
        // Entries that are gone no longer count; existing ones do.
        admission.recount_outstanding().unwrap();
        assert!(!send(&chain, slot, 4097));
        for position in 1..=10 {
            admission.forget(&from_port(position + 1000)).unwrap();
        }
        admission.recount_outstanding().unwrap();
        for position in 4097..=4106 {
            assert!(send(&chain, slot, position), "{position}");
        }
        assert!(!send(&chain, slot, 4107));
        assert_eq!(admission.counters().unwrap().token_overloaded, 3);
    }

    fn the_window_is_127_behind_and_128_ahead(world) {
        let (admission, _alice, checker) = serve(world, &LIMITS);
        let mut port = 1000;
        let mut expected = Counters::default();
        let mut number = 0;
        // For each tip: the position tried, and whether it is accepted.
        for (tip, position, accepted) in [
            (0, 128, true), (0, 129, false), (0, 1, true), (5, 133, true), (5, 134, false),
            (128, 1, true), (129, 1, false), (129, 2, true), (256, 129, true), (256, 128, false),
            (256, 384, true), (256, 385, false), (300, 299, true), (300, 301, true),
        ] {
            number += 1;
            let chain = Chain::new(number, 600);
            let slot = admission.open_tokens(&chain.session).unwrap();
            let mut send = |position| {
                port += 1;
                let connection = from_port(port);
                checker.syn(&connection, &chain.option(slot, position, &connection));
                row(&admission, &connection).is_some()
            };
            let mut reached = 0;
            while reached < tip {
                reached = tip.min(reached + 128);
                assert!(send(reached));
                expected.token_accepted += 1;
            }
            assert_eq!(send(position), accepted, "{position} from {tip}");
            match (accepted, tip, position) {
                (true, ..) => expected.token_accepted += 1,
                // The position's low byte selects 0 or less, which no chain has.
                (false, 0 | 5, _) => expected.token_out_of_range += 1,
                _ => expected.token_mismatch += 1,
            }
            counted(&admission, expected);
        }
    }

    fn tokens_come_in_any_order(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 128);
        // Each position once, odd ones down and even ones up, and then each again.
        let order: Vec<u32> = (1..=128).rev().step_by(2).chain((1..128).step_by(2)).collect();
        for (position, port) in order.iter().zip(2000..) {
            let connection = from_port(port);
            checker.syn(&connection, &chain.option(slot, *position, &connection));
            assert!(row(&admission, &connection).is_some(), "{position}");
        }
        counted(&admission, Counters { token_accepted: 128, ..Counters::default() });
        for (position, port) in order.iter().zip(3000..) {
            let connection = from_port(port);
            checker.syn(&connection, &chain.option(slot, *position, &connection));
            assert!(row(&admission, &connection).is_none(), "{position}");
        }
        counted(&admission, Counters {
            token_accepted: 128, token_replayed: 128, ..Counters::default()
        });
    }

    fn a_token_is_good_for_its_own_connection_only(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        let own = from_port(4001);
        let option = chain.option(slot, 1, &own);
        let end = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let other_client = ConnectionTuple::new(end("10.9.0.3:4001"), own.server).unwrap();
        let other_server = ConnectionTuple::new(own.client, end("10.9.0.4:143")).unwrap();
        let expected = expect_refusals(&admission, || {
            for connection in [from_port(4002), from_port_v6(4001), other_client, other_server] {
                checker.syn(&connection, &option);
                assert!(row(&admission, &connection).is_none());
            }
        });
        assert_eq!(expected.token_foreign + expected.token_mismatch, 4);
        // Another key.
        let mut stranger = Chain::new(1, 100);
        stranger.session.key = [9; 16];
        let expected = expect_refusals(&admission, || {
            checker.syn(&own, &stranger.option(slot, 1, &own));
        });
        assert_eq!(expected.token_foreign + expected.token_mismatch, 1);
        // Another chain, with the right key.
        let mut stranger = Chain::new(2, 100);
        stranger.session.key = chain.session.key;
        let expected = expect_refusals(&admission, || {
            checker.syn(&own, &stranger.option(slot, 1, &own));
        });
        assert_eq!(expected.token_mismatch, 1);
        // Nothing was spent.
        checker.syn(&own, &option);
        assert!(row(&admission, &own).is_some());
    }

    fn every_bit_of_a_token_counts(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        let connection = from_port(4001);
        let option = chain.option(slot, 7, &connection);
        for bit in 0..160 {
            let mut other = option;
            other[bit / 8] ^= 1 << (bit % 8);
            checker.syn(&connection, &other);
            assert!(row(&admission, &connection).is_none(), "bit {bit}");
        }
        let counters = admission.counters().unwrap();
        // Kind, size and experiment: no token. Slot: not open. Position: under the mask. The zero
        // byte and the element.
        counted(&admission, Counters {
            token_unknown: 24,
            token_foreign: counters.token_foreign,
            token_mismatch: 128 - 24 - counters.token_foreign,
            token_out_of_range: 0,
            ..Counters::default()
        });
        assert!(counters.token_foreign >= 8 + 7 && counters.token_mismatch >= 88);
        checker.syn(&connection, &option);
        assert!(row(&admission, &connection).is_some());
    }

    fn a_token_is_found_among_other_options_and_nothing_else_is_one(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        let connection = from_port(4001);
        let option = chain.option(slot, 1, &connection);
        const USUAL: [u8; 20] =
            [2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
        let other_experiment = {
            let mut other = option;
            other[2] ^= 1;
            other
        };
        let other_size = {
            let mut other = option;
            other[1] = 19;
            other
        };
        let none: [Vec<u8>; 11] = [
            Vec::new(),
            USUAL.to_vec(),
            option[..16].to_vec(),
            [&[0][..], &option].concat(),
            [&[2, 0][..], &option].concat(),
            [&[2, 1][..], &option].concat(),
            [&[2, 255][..], &option].concat(),
            [&[5, 30][..], &[0; 2], &option].concat(),
            other_experiment.to_vec(),
            other_size.to_vec(),
            [&USUAL[..], &option[..16]].concat(),
        ];
        for options in &none {
            checker.syn(&connection, options);
            assert!(row(&admission, &connection).is_none(), "{options:?}");
        }
        counted(&admission, Counters::default());
        let found: [Vec<u8>; 7] = [
            option.to_vec(),
            [&option[..], &USUAL].concat(),
            [&USUAL[..], &option].concat(),
            [&[1; 20][..], &option].concat(),
            [&[1][..], &option].concat(),
            [&other_experiment[..], &option].concat(),
            [&option[..], &other_experiment].concat(),
        ];
        for (options, position) in found.iter().zip(1..) {
            let connection = from_port(5000 + u16::try_from(position).unwrap());
            let right = chain.option(slot, position, &connection);
            let at = options.windows(20).position(|bytes| bytes == option).unwrap();
            let mut options = options.clone();
            options[at..at + 20].copy_from_slice(&right);
            checker.syn(&connection, &options);
            assert!(row(&admission, &connection).is_some(), "{options:?}");
        }
        counted(&admission, Counters { token_accepted: 7, ..Counters::default() });
    }

    fn only_a_syn_to_a_service_is_looked_at(world) {
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        let connection = from_port(4001);
        let option = chain.option(slot, 1, &connection);
        for flags in [0, ACK, SYN | ACK, SYN | RST, SYN | FIN, RST, FIN] {
            checker.run(&ethernet(&ip(&connection, flags, &option)));
        }
        let elsewhere =
            ConnectionTuple::new(connection.client, SocketAddr::from(([10, 9, 0, 1], 144))).unwrap();
        checker.syn(&elsewhere, &chain.option(slot, 1, &elsewhere));
        let whole = ip(&connection, SYN, &option);
        let mut changed = Vec::new();
        // More fragments; not the first fragment; UDP; IP version 5; a header too short.
        for (at, byte) in [(6, 0x60), (7, 1), (9, 17), (0, 0x55), (0, 0x44)] {
            let mut packet = whole.clone();
            packet[at] = byte;
            changed.push(packet);
        }
        let six = from_port_v6(4001);
        let mut extended = ip(&six, SYN, &chain.option(slot, 1, &six));
        // A header says that an extension follows, and none does.
        extended[6] = 60;
        changed.push(extended);
        for packet in changed {
            checker.run(&ethernet(&packet));
        }
        // Cut short, at every length.
        for size in 20..whole.len() {
            checker.run(&ethernet(&whole[..size]));
        }
        // ARP, and a frame of another protocol that looks like IP.
        let mut frame = ethernet(&whole);
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        checker.run(&frame);
        counted(&admission, Counters::default());
        assert!(admission.admissions().unwrap().is_empty());

        // A SYN with IP options and congestion bits is a SYN like any other.
        let mut packet = ip(&connection, SYN | 0xc0, &option);
        packet[0] = 0x46;
        packet.splice(20..20, [1, 1, 1, 0]);
        checker.run(&ethernet(&packet));
        assert!(row(&admission, &connection).is_some());
    }

    fn ends_that_no_socket_has_get_no_entry(world) {
        // Such endpoints would make the listing unreadable.
        let (admission, _alice, checker, chain, slot) = opened(world, 100);
        let end = |text: &str| -> SocketAddr { text.parse().unwrap() };
        for (client, server) in [
            ("0.0.0.0:5", "10.9.0.1:143"),
            ("10.9.0.2:5", "0.0.0.0:143"),
            ("10.9.0.2:0", "10.9.0.1:143"),
            ("[::]:5", "[fd00::1]:143"),
            ("[fd00::2]:5", "[::]:143"),
            ("[::ffff:10.9.0.2]:5", "[fd00::1]:143"),
            ("[::ffff:10.9.0.2]:5", "[::ffff:10.9.0.1]:143"),
            ("[::ffff:0.0.0.0]:5", "[fd00::1]:143"),
        ] {
            let (client, server) = (end(client), end(server));
            let connection = ConnectionTuple { client, server };
            let option = chain.option(slot, 1, &connection);
            checker.run(&ethernet(&ip_of(client, server, SYN, &option)));
            assert!(admission.admissions().unwrap().is_empty(), "{connection}");
        }
        counted(&admission, Counters::default());
        let addresses = ["::1", "::2:0:0", "::ffff:0:a09:2"].map(|ip| (HOST, ip.parse().unwrap()));
        admission.set_client_addresses(&addresses).unwrap();
        for (client, position) in [("[::1]:5", 1), ("[::2:0:0]:5", 2), ("[::ffff:0:a09:2]:5", 3)] {
            let connection = ConnectionTuple::new(end(client), end("[fd00::1]:143")).unwrap();
            checker.syn(&connection, &chain.option(slot, position, &connection));
            assert!(row(&admission, &connection).is_some(), "{connection}");
        }
    }

    fn a_session_is_for_one_service_and_for_its_time(world) {
        let (admission, _alice, checker) = serve(world, &LIMITS);
        admission.set_services(&[(PORT, SERVICE), (144, 9)]).unwrap();
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let elsewhere =
            ConnectionTuple::new(from_port(4001).client, SocketAddr::from(([10, 9, 0, 1], 144)))
                .unwrap();
        checker.syn(&elsewhere, &chain.option(slot, 1, &elsewhere));
        assert!(row(&admission, &elsewhere).is_none());
        counted(&admission, Counters { token_other_service: 1, ..Counters::default() });

        let connection = from_port(4001);
        let mut brief = Chain::new(2, 100);
        brief.session.lifetime = Duration::ZERO;
        let expired = admission.open_tokens(&brief.session).unwrap();
        checker.syn(&connection, &brief.option(expired, 1, &connection));
        assert!(row(&admission, &connection).is_none());
        counted(&admission, Counters {
            token_other_service: 1, token_expired: 1, ..Counters::default()
        });
        checker.syn(&connection, &chain.option(slot, 1, &connection));
        assert!(row(&admission, &connection).is_some());
    }

    fn a_full_table_of_connections_admits_nobody_more(world) {
        let limits = Limits { admissions: 2, ..LIMITS };
        let (admission, _alice, checker) = serve(world, &limits);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        for position in 1..=3 {
            let connection = from_port(u16::try_from(position).unwrap());
            checker.syn(&connection, &chain.option(slot, position, &connection));
            assert_eq!(row(&admission, &connection).is_some(), position < 3);
        }
        counted(&admission, Counters {
            token_accepted: 2, token_table_full: 1, ..Counters::default()
        });
        admission.forget(&from_port(1)).unwrap();
        let connection = from_port(4);
        checker.syn(&connection, &chain.option(slot, 4, &connection));
        assert!(row(&admission, &connection).is_some());
    }
}

/// A server with a session of this many tokens.
fn opened(world: &World, length: u32) -> (Admission, OwnedFd, Checker, Chain, TokenSlot) {
    let (admission, alice, checker) = serve(world, &LIMITS);
    let chain = Chain::new(1, length);
    let slot = admission.open_tokens(&chain.session).unwrap();
    (admission, alice, checker, chain, slot)
}

/// Expects these refusals and no admission.
fn expect_refusals(admission: &Admission, what: impl FnOnce()) -> Counters {
    let before = admission.counters().unwrap();
    what();
    let after = admission.counters().unwrap();
    assert_eq!(after.token_accepted, before.token_accepted);
    Counters {
        token_foreign: after.token_foreign - before.token_foreign,
        token_mismatch: after.token_mismatch - before.token_mismatch,
        ..Counters::default()
    }
}
