//! State that outlives a keeper, and states that an adopted table refuses.

#[macro_use]
mod world;

use std::io::{Read, Write};
use std::os::fd::AsFd;

use usher_daemon::role::HasRole;
use usher_kernel::KernelError;
use usher_kernel::admission::{AdmissionState, Ended, Limits, SessionError, SessionRecord};
use usher_local::roles;
use usher_proto::{Certified, ChainTip, Refusal};
use usher_system::privileges;
use world::*;

fn record(uid: u32) -> SessionRecord {
    SessionRecord {
        uid,
        service: SERVICE,
        user: "alice".parse().unwrap(),
        host: "laptop".parse().unwrap(),
        tip: ChainTip::at_anchor([1; 16]),
        chain_length: 1024,
        chain_salt: [2; 16],
        token_anchor: [6; 11],
        key_fingerprint: [3; 32],
        certified: false,
        host_number: 7,
        opened: 1_700_000_000,
        expires: 1_700_003_600,
        ended: None,
    }
}

tests! {
    fn admission_goes_on_while_no_keeper_is_there(world) {
        let (admission, alice, bob) = world.serve();
        let before = Client::v4();
        admission.announce(&before.connection, &announced(ALICE)).unwrap();
        let mut far = before.connect().unwrap();
        let (mut near, from) = accept(&alice);
        let coming = Client::v6();
        let connection = coming.connection;
        admission.announce(&connection, &announced(BOB)).unwrap();
        drop(admission);

        Client::v4().expect_refused();
        let later_far = coming.connect().unwrap();
        let (later_near, _) = accept(&bob);
        far.write_all(b"still here").unwrap();
        let mut bytes = [0; 10];
        near.read_exact(&mut bytes).unwrap();

        let admission = world.open().unwrap();
        let rows = admission.admissions().unwrap();
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.state == AdmissionState::Established));
        assert_eq!(admission.counters().unwrap().admitted, 2);
        near.write_all(b"still here").unwrap();
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"still here");
        // The programs attached now follow both connections to their end.
        drop((far, near, later_far, later_near));
        eventually("the entries go", || admission.admissions().unwrap().is_empty());
        assert_eq!(admission.counters().unwrap().closed, 2);
        Client::v4().expect_refused();
        let after = Client::bound(from, v4(PORT));
        admission.announce(&after.connection, &announced(BOB)).unwrap();
        let another = Client::v4();
        admission.announce(&another.connection, &announced(BOB)).unwrap();
        another.connect().unwrap();
        accept(&bob);
    }

    fn programs_are_replaced_without_a_gap(world) {
        // While one thread opens again and again, strangers are refused throughout and announced
        // connections are admitted.
        let (admission, alice, _bob) = world.serve();
        drop(admission);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    Client::v4().expect_refused();
                }
            });
            for _ in 0..rounds(50) {
                let admission = world.open().unwrap();
                let client = Client::v6();
                admission.announce(&client.connection, &announced(ALICE)).unwrap();
                drop(admission);
                client.connect().unwrap();
                accept(&alice);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(!usher_kernel::listener::has_waiting(alice.as_fd()));
    }

    fn sessions_outlive_the_keeper(world) {
        let admission = world.open().unwrap();
        admission.insert_session(&session(1), &record(ALICE)).unwrap();
        assert!(matches!(
            admission.insert_session(&session(1), &record(BOB)),
            Err(SessionError::Exists)
        ));
        admission.insert_session(&session(2), &record(BOB)).unwrap();
        admission.update_session(&session(3), &record(BOB)).unwrap_err();
        let ended = SessionRecord {
            ended: Some(Ended { at: 1_700_000_100, reason: Refusal::DisabledUser, recorded: false }),
            ..record(BOB)
        };
        admission.update_session(&session(2), &ended).unwrap();
        drop(admission);

        let admission = world.open().unwrap();
        assert_eq!(admission.session(&session(1)).unwrap(), Some(record(ALICE)));
        assert_eq!(admission.session(&session(2)).unwrap(), Some(ended));
        assert_eq!(admission.session(&session(3)).unwrap(), None);
        let mut all: Vec<_> =
            admission.sessions().unwrap().into_iter().map(|(id, _)| id).collect();
        all.sort();
        assert_eq!(all, [session(1), session(2)]);
        assert_eq!(admission.certificate(&session(1)).unwrap(), None);
        admission.remove_session(&session(1)).unwrap();
        admission.remove_session(&session(1)).unwrap();
        assert_eq!(admission.sessions().unwrap().len(), 1);
    }

    fn a_sessions_certificate_outlives_the_keeper_and_goes_with_it(world) {
        let admission = world.open().unwrap();
        let certificate = |serial| Certified {
            authority: [1; 32],
            authority_sha1: [2; 20],
            key_sha1: [3; 20],
            serial,
            key_id: [4; 32],
            valid_before: 5,
            principals: "alice,ops".parse().unwrap(),
        };
        let insert = |number, serial| {
            admission.insert_certified_session(&session(number), &record(ALICE), &certificate(serial))
        };
        insert(1, 1).unwrap();
        assert!(matches!(insert(1, 2), Err(SessionError::Exists)));
        admission.insert_session(&session(2), &record(BOB)).unwrap();
        drop(admission);

        let admission = world.open().unwrap();
        let kept = admission.session(&session(1)).unwrap().unwrap();
        assert_eq!(kept, SessionRecord { certified: true, ..record(ALICE) });
        assert_eq!(admission.certificate(&session(1)).unwrap(), Some(certificate(1)));
        assert_eq!(admission.certificate(&session(2)).unwrap(), None);
        admission.remove_session(&session(1)).unwrap();
        assert_eq!(admission.certificate(&session(1)).unwrap(), None);
    }

    fn a_full_session_table_refuses_and_is_read_whole(world) {
        let limits = Limits { sessions: 5000, admissions: 3000, listeners: 16, tokens: 64 };
        let admission = world.open_with(&limits).unwrap();
        let id = |number: u16| {
            let mut bytes = [0; 16];
            bytes[..2].copy_from_slice(&number.to_le_bytes());
            usher_proto::SessionId::from_bytes(bytes)
        };
        for number in 0..5000 {
            admission.insert_session(&id(number), &record(u32::from(number))).unwrap();
        }
        assert!(matches!(
            admission.insert_session(&id(5000), &record(ALICE)),
            Err(SessionError::Full)
        ));
        let mut all = admission.sessions().unwrap();
        all.sort_by_key(|(_, record)| record.uid);
        assert_eq!(all.len(), 5000);
        for (number, (session, record)) in (0_u16..).zip(&all) {
            assert_eq!((*session, record.uid), (id(number), u32::from(number)));
        }
        admission.remove_session(&id(17)).unwrap();
        admission.insert_session(&id(5000), &record(ALICE)).unwrap();
    }

    fn one_keeper_at_a_time(world) {
        let admission = world.open().unwrap();
        assert!(matches!(world.open(), Err(KernelError::InUse(_))));
        drop(admission);
        world.open().unwrap();
    }

    fn other_limits_are_refused(world) {
        let (admission, alice, _bob) = world.serve();
        drop(admission);
        let other = Limits { sessions: 17, ..LIMITS };
        match world.open_with(&other) {
            Err(KernelError::OtherLimit { table: "sessions", found: 16, asked: 17, .. }) => {}
            other => panic!("{other:?}"),
        }
        // The failed attempt has changed nothing.
        Client::v4().expect_refused();
        let admission = world.open().unwrap();
        let client = Client::v4();
        admission.announce(&client.connection, &announced(ALICE)).unwrap();
        client.connect().unwrap();
        accept(&alice);
    }

    fn another_layout_is_refused(world) {
        drop(world.open().unwrap());
        let layout = world.pins.join("layout");
        run("bpftool", &[
            "map", "update", "pinned", layout.to_str().unwrap(),
            "key", "0", "0", "0", "0", "value", "99", "0", "0", "0", "0", "0", "0", "0",
        ]);
        match world.open() {
            Err(KernelError::OtherLayout { found: 99, .. }) => {}
            other => panic!("{other:?}"),
        }
        std::fs::remove_dir_all(&world.pins).unwrap();
        world.open().unwrap();
    }

    fn another_namespace_is_refused(world) {
        drop(world.open().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: moves only this thread, to a new network namespace.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                assert!(matches!(world.open(), Err(KernelError::OtherNamespace(_))));
            });
        });
        world.open().unwrap();
    }

    fn pins_need_a_bpf_file_system(world) {
        let folder = tempfile::tempdir().unwrap();
        let result =
            usher_kernel::admission::Admission::open(&folder.path().join("pins"), &world.cgroup, &LIMITS);
        assert!(matches!(result, Err(KernelError::NoBpfFileSystem(_))));
    }

    fn half_a_set_of_pins_is_completed(world) {
        drop(world.open().unwrap());
        // The pins are as if the first keeper had died between two of them.
        for pin in ["link_choose_queue", "untracked", "counters"] {
            std::fs::remove_file(world.pins.join(pin)).unwrap();
        }
        let (_admission, _alice, _bob) = world.serve();
        Client::v4().expect_refused();
    }

    fn a_reader_of_one_family_does_not_stay(world) {
        if world.at_interfaces {
            println!("skipped: this kernel has no netfilter programs that see whole packets");
            return;
        }
        let _other = world.open().unwrap();
        let detach = |family: &str| {
            let link = world.pins.join(format!("link_check_token_{family}_0"));
            run("bpftool", &["link", "detach", "pinned", link.to_str().unwrap()]);
        };
        // Another party has taken the priority for IPv6; the one for IPv4 is free.
        detach("ipv4");
        let pins = world.pins.with_file_name("beside");
        let open = || usher_kernel::admission::Admission::open(&pins, &world.cgroup, &LIMITS).unwrap();
        let readers = || {
            let names = pins.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_str().unwrap().contains("check_token")).count()
        };
        assert!(open().reads_at_interfaces().is_some());
        assert_eq!(readers(), 0);
        detach("ipv6");
        assert_eq!(open().reads_at_interfaces(), None);
        assert_eq!(readers(), 2);
    }

    fn a_keeper_in_another_cgroup_follows_old_and_new_connections(world) {
        let (admission, alice, _bob) = world.serve();
        let old = Client::v4();
        admission.announce(&old.connection, &announced(ALICE)).unwrap();
        let far = old.connect().unwrap();
        let near = accept(&alice);
        drop(admission);

        let other = usher_kernel::cgroup::Group::create(&world.cgroup, "other").unwrap();
        let leaf = usher_kernel::cgroup::Group::create(other.path(), "keeper").unwrap();
        leaf.move_self().unwrap();
        let admission =
            usher_kernel::admission::Admission::open(&world.pins, other.path(), &LIMITS).unwrap();
        let fresh = queue(&admission, BOB, 16);
        let new = Client::v4();
        admission.announce(&new.connection, &announced(BOB)).unwrap();
        let new_far = new.connect().unwrap();
        let new_near = accept(&fresh);
        assert_eq!(admission.admissions().unwrap().len(), 2);
        drop((far, near));
        eventually("the old entry goes", || admission.admissions().unwrap().len() == 1);
        drop((new_far, new_near));
        eventually("the new entry goes", || admission.admissions().unwrap().is_empty());
    }

    fn the_kept_capabilities_suffice(world) {
        let (admission, alice, _bob) = world.serve();
        privileges::keep_only(roles::Keeper::ROLE.capabilities).unwrap();
        let fresh = queue(&admission, BOB, 16);
        for (uid, queue) in [(ALICE, &alice), (BOB, &fresh)] {
            let client = Client::v6();
            let connection = client.connection;
            admission.announce(&connection, &announced(uid)).unwrap();
            let _far = client.connect().unwrap();
            let _near = accept(queue);
            assert!(usher_system::connections::destroy(&connection).unwrap());
            assert!(row(&admission, &connection).is_none());
        }
        let client = Client::v6();
        admission.announce(&client.connection, &announced(ALICE)).unwrap();
        admission.withdraw(&client.connection, &announced(ALICE).session).unwrap();
        client.expect_refused();
        admission.insert_session(&session(1), &record(ALICE)).unwrap();
        admission.set_services(&[(PORT, SERVICE), (8025, 9)]).unwrap();
        assert_eq!(admission.sessions().unwrap().len(), 1);
        assert_eq!(admission.sweep().unwrap(), 0);
        assert_eq!(admission.counters().unwrap().admitted, 2);
        assert_eq!(admission.drain_untracked().unwrap(), []);
    }

    // Threat model: A66
    fn one_users_connection_never_lands_in_anothers_queue(world) {
        // Announcements, SYNs, withdrawals and recycled entries, as fast as two threads can, in a
        // table with hardly any room.
        let limits = Limits { admissions: 4, ..LIMITS };
        let admission = world.open_with(&limits).unwrap();
        admission.set_services(&[(PORT, SERVICE)]).unwrap();
        let alice = queue(&admission, ALICE, 64);
        let bob = queue(&admission, BOB, 64);
        std::thread::scope(|scope| {
            for (uid, queue) in [(ALICE, &alice), (BOB, &bob)] {
                let admission = &admission;
                scope.spawn(move || {
                    let mut admitted = 0;
                    for round in 0..2000 {
                        let client = if round % 2 == 0 { Client::v4() } else { Client::v6() };
                        let connection = client.connection;
                        admission.announce(&connection, &announced(uid)).unwrap();
                        let withdrawn = round % 3 == 0;
                        let outcome = std::thread::scope(|inner| {
                            if withdrawn {
                                inner.spawn(|| {
                                    admission
                                        .withdraw(&connection, &announced(uid).session)
                                        .unwrap();
                                });
                            }
                            client.connect()
                        });
                        match outcome {
                            Ok(far) => {
                                admitted += 1;
                                let (near, from) = accept(queue);
                                assert_eq!(from, connection.client);
                                drop((far, near));
                            }
                            Err(error) => {
                                assert!(withdrawn, "{error}");
                                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
                            }
                        }
                        eventually("the entry goes", || row(admission, &connection).is_none());
                    }
                    assert!(admitted >= 1300);
                });
            }
        });
        let counters = admission.counters().unwrap();
        assert_eq!(counters.untracked, 0);
        assert_eq!(counters.established, counters.closed);
    }
}
