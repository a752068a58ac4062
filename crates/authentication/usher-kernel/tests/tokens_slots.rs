//! Slots: which session gets which, what outlives a keeper, and what happens concurrently.

#[macro_use]
mod world;
mod forge;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forge::*;
use libbpf_rs::Link;
use usher_daemon::role::HasRole;
use usher_kernel::KernelError;
use usher_kernel::admission::{Admission, Counters, Limits, TokenError, TokenRow};
use usher_kernel::probe;
use usher_local::roles;
use usher_proto::{SessionId, TokenSlot};
use usher_system::privileges;
use world::*;

const LIMITS: Limits = Limits {
    sessions: 16,
    admissions: 4096,
    listeners: 16,
    tokens: 4,
};

/// The time for which a closed slot is not reused.
const REST: Duration = Duration::from_secs(16);

/// Opens a session of 10 tokens. Returns a function that makes a client with the token at a position.
fn clients(world: &World, admission: &Admission) -> impl Fn(u32) -> Client {
    let writer = Writer::attached(world);
    let chain = Chain::new(1, 10);
    let slot = admission.open_tokens(&chain.session).unwrap();
    move |position| {
        let client = Client::v4();
        writer.write(&client, &chain.option(slot, position, &client.connection));
        client
    }
}

/// The session's slot in the kernel's table.
fn slot_of(admission: &Admission, session: &SessionId) -> Option<TokenSlot> {
    let rows = admission.tokens().unwrap();
    rows.iter()
        .find(|row| row.session == *session)
        .map(|row| row.slot)
}

/// Whether the token admits a connection from this port.
fn admits(
    admission: &Admission,
    checker: &Checker,
    chain: &Chain,
    position: u32,
    port: u16,
) -> bool {
    let connection = from_port(port);
    let slot = slot_of(admission, &chain.session.session).unwrap();
    checker.syn(&connection, &chain.option(slot, position, &connection));
    row(admission, &connection).is_some()
}

/// Whether tokens are read at interfaces, so without netfilter programs. Prints the reason if the kernel
/// has none: where it has them, the test runs again with them.
fn is_without_links(world: &World) -> bool {
    if !has_netfilter_programs() {
        println!("skipped: this kernel has no netfilter programs");
    }
    world.at_interfaces
}

tests_of_tokens! {
    fn each_session_has_a_slot_of_its_own(world) {
        let (admission, _alice, checker) = serve(world, &LIMITS);
        let chains = [1, 2, 3, 4].map(|number| Chain::new(number, 10));
        for (chain, number) in chains.iter().zip(0..) {
            assert_eq!(admission.open_tokens(&chain.session).unwrap().number(), number);
        }
        assert!(matches!(admission.open_tokens(&chains[0].session), Err(TokenError::Exists)));
        let fifth = Chain::new(5, 10);
        assert!(matches!(admission.open_tokens(&fifth.session), Err(TokenError::Full)));
        for length in [0, 65_537] {
            let mut session = fifth.session;
            session.length = length;
            assert!(matches!(admission.open_tokens(&session), Err(TokenError::Length(_))));
        }
        for (chain, port) in chains.iter().zip(1..) {
            assert!(admits(&admission, &checker, chain, 1, port));
        }
        let mut rows = admission.tokens().unwrap();
        rows.sort_by_key(|row| row.slot);
        for (row, chain) in rows.iter().zip(&chains) {
            assert_eq!((row.session, row.service, row.uid), (chain.session.session, SERVICE, ALICE));
            assert_eq!((row.position, row.length), (1, 10));
        }
        assert_eq!(rows.len(), 4);
    }

    fn a_closed_slot_rests_before_it_is_given_again(world) {
        let (admission, _alice, checker) = serve(world, &Limits { tokens: 1, ..LIMITS });
        let (old, new) = (Chain::new(1, 10), Chain::new(2, 10));
        let slot = admission.open_tokens(&old.session).unwrap();
        assert!(admits(&admission, &checker, &old, 1, 1));
        let closed = Instant::now();
        // On a slow machine the slot's rest may already be over.
        let given = |admission: &Admission| match admission.open_tokens(&new.session) {
            Err(TokenError::Full) => false,
            Err(TokenError::Exists) => true,
            Ok(_) => {
                assert!(closed.elapsed() >= REST, "after {:?}", closed.elapsed());
                true
            }
            Err(other) => panic!("{other:?}"),
        };
        assert!(admission.close_tokens(&old.session.session).unwrap());
        assert!(!admission.close_tokens(&old.session.session).unwrap());
        assert!(!admission.close_tokens(&new.session.session).unwrap());
        assert_eq!(slot_of(&admission, &old.session.session), None);
        assert!(admission.tokens().unwrap().is_empty());
        given(&admission);
        drop(admission);
        // Another keeper does not reuse the resting slot either.
        let admission = world.open_with(&Limits { tokens: 1, ..LIMITS }).unwrap();
        given(&admission);
        eventually("the slot has rested", || given(&admission));
        assert_eq!(slot_of(&admission, &new.session.session), Some(slot));
        let connection = from_port(2);
        checker.syn(&connection, &old.option(slot, 2, &connection));
        assert!(row(&admission, &connection).is_none());
        assert!(admits(&admission, &checker, &new, 1, 3));
        let counters = admission.counters().unwrap();
        assert_eq!(counters.token_foreign + counters.token_mismatch, 1);
        assert_eq!(counters.token_accepted, 2);
    }

    fn slots_outlive_the_keeper(world) {
        let (admission, _alice, checker) = serve(world, &LIMITS);
        let (chain, other) = (Chain::new(1, 400), Chain::new(2, 10));
        admission.open_tokens(&other.session).unwrap();
        let slot = admission.open_tokens(&chain.session).unwrap();
        let closed = Instant::now();
        admission.close_tokens(&other.session.session).unwrap();
        assert!(admits(&admission, &checker, &chain, 100, 1));
        assert!(admits(&admission, &checker, &chain, 99, 2));
        let program = reader(world).unwrap();
        drop(admission);
        // A token is accepted while no keeper runs.
        let connection = from_port(3);
        checker.syn(&connection, &chain.option(slot, 98, &connection));

        let admission = world.open_with(&LIMITS).unwrap();
        assert!(row(&admission, &connection).is_some());
        assert_eq!(slot_of(&admission, &chain.session.session), Some(slot));
        assert_eq!(slot_of(&admission, &other.session.session), None);
        assert!(matches!(admission.open_tokens(&chain.session), Err(TokenError::Exists)));
        assert_eq!(reader(world) == Some(program), world.at_interfaces);
        let checker = Checker::attached(world, &admission);
        let fresh = reader(world).unwrap();
        assert_ne!(fresh, program);
        assert!(admission.unpinned_programs().unwrap().contains(&fresh));
        for (position, good) in [(98, false), (97, true), (100, false), (101, true)] {
            let port = u16::try_from(position).unwrap();
            assert_eq!(admits(&admission, &checker, &chain, position, port), good, "{position}");
        }
        // The new slot is neither the open one nor the resting one, unless this machine is slow.
        let given = admission.open_tokens(&other.session).unwrap();
        assert_ne!(given, slot);
        assert!(given.number() == 2 || closed.elapsed() >= REST, "{given:?}");
        assert!(admission.close_tokens(&chain.session.session).unwrap());
        drop(admission);
        match world.open_with(&Limits { tokens: 5, ..LIMITS }) {
            Err(KernelError::OtherLimit { table: "tokens", found: 4, asked: 5, .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    fn the_filters_of_an_earlier_keeper_go(world) {
        let earlier = World { at_interfaces: true, pins: world.pins.clone(), cgroup: world.cgroup.clone() };
        let (admission, _alice, checker) = serve(&earlier, &LIMITS);
        let chain = Chain::new(1, 10);
        admission.open_tokens(&chain.session).unwrap();
        assert!(admits(&admission, &checker, &chain, 1, 1));
        assert!(program_on(1).is_some());
        drop(admission);
        let admission = world.open_with(&LIMITS).unwrap();
        assert_eq!(program_on(1).is_some(), world.at_interfaces);
        let checker = Checker::attached(world, &admission);
        for (position, port) in [(1, 2), (2, 3)] {
            assert_eq!(admits(&admission, &checker, &chain, position, port), position == 2);
        }
    }

    fn a_link_that_somebody_has_detached_is_put_back(world) {
        if is_without_links(world) {
            return;
        }
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let connect = clients(world, &admission);
        // The links are detached, and their pins stay.
        for position in [1, 3] {
            for link in links(world) {
                Link::open(link).unwrap().detach().unwrap();
            }
            connect(position).expect_refused();
            assert!(admission.attach_tokens().unwrap().is_empty());
            let _far = connect(position + 1).connect().unwrap();
            let _near = accept(&alice);
        }
        // The twin: links in force are left alone.
        let before = links(world);
        assert!(admission.attach_tokens().unwrap().is_empty());
        assert_eq!(links(world), before);
    }

    fn a_probe_finds_what_opening_finds(world) {
        if is_without_links(world) {
            return;
        }
        let probe = |name| probe::ALL.iter().find(|probe| probe.name == name).unwrap().run();
        let admission = world.open_with(&LIMITS).unwrap();
        assert!(admission.reads_at_interfaces().is_none());
        for name in ["tokens under IPsec", "protected services"] {
            assert!(probe(name).unwrap().contains("can be attached"));
        }
        // The probe attaches its programs to a network of its own: the priorities here stay this program's.
        assert!(admission.attach_tokens().unwrap().is_empty());
        // The twin: a process that may load the programs and attach none.
        let kept = roles::Keeper::ROLE.capabilities;
        privileges::keep_only(kept).unwrap();
        probe("tokens under IPsec").unwrap_err();
    }

    fn filters_of_others_stay_in_force(world) {
        let loser = Loser::attached(1, 10);
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let connect = clients(world, &admission);
        let seen = loser.seen();
        let _far = connect(1).connect().unwrap();
        let _near = accept(&alice);
        assert!(loser.seen() > seen);
        stop_reading(world);
        assert_eq!(reader(world), None);
        let seen = loser.seen();
        connect(2).expect_refused();
        assert!(loser.seen() > seen);
        assert!(admission.attach_tokens().unwrap().is_empty());
        let _far = connect(3).connect().unwrap();
        let _near = accept(&alice);
        counted(&admission, Counters {
            admitted: 2, established: 2, token_accepted: 2, refused_unannounced: 1, ..Counters::default()
        });
    }

    fn what_cannot_be_attached_to_is_told(world) {
        // Another party's filter for another protocol occupies Usher's place.
        run("ip", &["link", "add", "taken", "type", "veth", "peer", "name", "free"]);
        run("tc", &["qdisc", "add", "dev", "taken", "clsact"]);
        run("tc", &[
            "filter", "add", "dev", "taken", "ingress", "prio", "3", "protocol", "ip", "bpf",
            "bytecode", "1,6 0 0 0",
        ]);
        let admission = world.open_with(&LIMITS).unwrap();
        for _ in 0..2 {
            let unattached = admission.attach_tokens().unwrap();
            let names: Vec<_> = unattached.iter().map(|one| one.interface.as_str()).collect();
            // At LOCAL_IN no filter of another party is in the way.
            let expected: &[_] = if world.at_interfaces { &["taken"] } else { &[] };
            assert_eq!(names, expected);
        }
        assert!(reader(world).is_some());
        run("tc", &["filter", "del", "dev", "taken", "ingress", "prio", "3"]);
        assert!(admission.attach_tokens().unwrap().is_empty());
    }

    fn the_kept_capabilities_suffice(world) {
        let (admission, _alice, checker) = serve(world, &LIMITS);
        stop_reading(world);
        privileges::keep_only(roles::Keeper::ROLE.capabilities).unwrap();
        let chain = Chain::new(1, 10);
        admission.open_tokens(&chain.session).unwrap();
        assert!(admission.attach_tokens().unwrap().is_empty());
        assert!(reader(world).is_some());
        assert!(admits(&admission, &checker, &chain, 1, 1));
        assert!(admission.close_tokens(&chain.session.session).unwrap());
        stop_reading(world);
        assert_eq!(reader(world), None);
    }

    // Threat model: A13
    fn two_connections_with_one_token_at_the_same_time(world) {
        let count = rounds(3000);
        let (admission, _alice, checker) = serve(world, &LIMITS);
        let chain = Chain::new(1, count);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let barrier = Barrier::new(2);
        let wins = [AtomicU32::new(0), AtomicU32::new(0)];
        std::thread::scope(|scope| {
            for number in 0..2_u16 {
                let (admission, checker, chain) = (&admission, &checker, &chain);
                let (barrier, wins) = (&barrier, &wins);
                scope.spawn(move || {
                    for round in 0..count {
                        let connection = from_port(1 + number);
                        let shared = chain.option(slot, round + 1, &connection);
                        barrier.wait();
                        checker.syn(&connection, &shared);
                        barrier.wait();
                        if row(admission, &connection).is_some() {
                            wins[usize::from(number)].fetch_add(1, Ordering::Relaxed);
                            admission.forget(&connection).unwrap();
                        }
                    }
                });
            }
        });
        let wins = wins.map(AtomicU32::into_inner);
        assert_eq!(wins[0] + wins[1], count, "{wins:?}");
        counted(&admission, Counters {
            token_accepted: u64::from(count), token_replayed: u64::from(count), ..Counters::default()
        });
    }

    fn two_tokens_of_a_session_at_the_same_time(world) {
        let count = rounds(3000);
        let (admission, _alice, checker) = serve(world, &LIMITS);
        let chain = Chain::new(1, 2 * count);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            for number in 0..2_u16 {
                let (admission, checker, chain, barrier) = (&admission, &checker, &chain, &barrier);
                scope.spawn(move || {
                    for round in 0..count {
                        let connection = from_port(1 + number);
                        let position = 2 * round + 1 + u32::from(number);
                        let option = chain.option(slot, position, &connection);
                        barrier.wait();
                        checker.syn(&connection, &option);
                        assert!(row(admission, &connection).is_some(), "{position}");
                        admission.forget(&connection).unwrap();
                        if round % 1000 == 999 {
                            admission.recount_outstanding().unwrap();
                        }
                    }
                });
            }
        });
        counted(&admission, Counters {
            token_accepted: u64::from(2 * count), ..Counters::default()
        });
        assert_eq!(admission.tokens().unwrap()[0].position, 2 * count);
    }

    fn a_session_closed_after_its_token_was_spent_admits_nobody(world) {
        let limits = Limits { tokens: 200, ..LIMITS };
        let (admission, _alice, _checker) = serve(world, &limits);
        let paused = Checker::paused(world);
        let mut withdrawn = 0;
        for round in 0..100 {
            let chain = Chain::new(round, 1);
            let slot = admission.open_tokens(&chain.session).unwrap();
            let connection = from_port(1 + u16::from(round));
            let option = chain.option(slot, 1, &connection);
            std::thread::scope(|scope| {
                scope.spawn(|| paused.syn(&connection, &option));
                let position = |row: &TokenRow| row.slot == slot && row.position == 1;
                while !admission.tokens().unwrap().iter().any(position) {}
                assert!(admission.close_tokens(&chain.session.session).unwrap());
                if admission.admission(&connection).unwrap().is_some() {
                    admission.forget(&connection).unwrap();
                }
            });
            assert_eq!(row(&admission, &connection), None, "round {round}");
            withdrawn = admission.counters().unwrap().token_withdrawn;
            if withdrawn == 3 {
                break;
            }
        }
        // The revocation came between the two steps and found no connection.
        assert_eq!(withdrawn, 3);
    }

    fn nothing_is_admitted_after_a_revocation(world) {
        let count = u16::try_from(rounds(3000)).unwrap();
        let limits = Limits { tokens: u32::from(count), ..LIMITS };
        let (admission, _alice, checker) = serve(world, &limits);
        let barrier = Barrier::new(2);
        let mut found = 0_u64;
        for round in 0..count {
            let mut id = [0; 16];
            id[..2].copy_from_slice(&round.to_le_bytes());
            let session = SessionId::from_bytes(id);
            let distance = [1, 16, 64, 128][usize::from(round % 4)];
            let chain = Chain::generate(session, distance, [1; 11], [2; 16], id);
            let slot = admission.open_tokens(&chain.session).unwrap();
            let connection = from_port(1 + round);
            let option = chain.option(slot, distance, &connection);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    checker.syn(&connection, &option);
                });
                barrier.wait();
                for _ in 0..u32::from(round) * 7 % 3000 {
                    std::hint::spin_loop();
                }
                // The order of a revocation: first the slot, then the connections.
                assert!(admission.close_tokens(&session).unwrap());
                if admission.admission(&connection).unwrap().is_some() {
                    found += 1;
                    admission.forget(&connection).unwrap();
                }
            });
            assert_eq!(row(&admission, &connection), None, "round {round}");
        }
        let counters = admission.counters().unwrap();
        counted(&admission, Counters {
            token_accepted: counters.token_accepted,
            token_withdrawn: counters.token_withdrawn,
            token_foreign: counters.token_foreign,
            token_mismatch: counters.token_mismatch,
            token_unknown: u64::from(count)
                - counters.token_accepted
                - counters.token_withdrawn
                - counters.token_foreign
                - counters.token_mismatch,
            ..Counters::default()
        });
        // Every accepted connection could be found.
        assert!(found >= counters.token_accepted, "{found} {counters:?}");
    }
}
