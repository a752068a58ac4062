//! An unmodified charon on each of several hosts: SAs by class, for programs' marked sockets.

mod world;

use std::sync::Arc;

use tokio::runtime::Runtime;
use usher_ike::{Ike, IkeKey, PeerState};
use world::{AUTHENTICATION, ENCRYPTION, World, all_protected, mark, reqid, wait_for};

macro_rules! guest_test {
    ($(fn $name:ident() $body:block)*) => {$(
        #[test]
        fn $name() {
            if let Some(reason) = world::reason_to_skip() {
                println!("skipped: {reason}");
                return;
            }
            let runtime = Runtime::new().expect("a runtime");
            let _entered = runtime.enter();
            $body
        }
    )*};
}

guest_test! {
    fn two_classes_share_a_peer_in_both_families() {
        let classes = [ENCRYPTION, AUTHENTICATION];
        let world = World::new(&["a", "b"], &classes);
        let ikes = world.negotiate(&classes);
        wait_for(&ikes[0], "SAs of both classes", all_protected);
        wait_for(&ikes[1], "SAs of both classes", all_protected);
        let marks = world.hosts[1].serve();
        for address in world.hosts[1].addresses {
            for class in classes {
                world.hosts[0].echo(Some(class), address).expect("protected traffic");
                assert_eq!(marks.lock().pop(), Some(mark(class)), "set by the inbound SA");
            }
            world.hosts[0].echo(None, address).expect("traffic without a class");
            assert_eq!(marks.lock().pop(), Some(0), "plaintext has no mark");
        }
        let report = ikes[0].report();
        assert_eq!(report.peers.len(), 2, "one entry an address");
        for peer in &report.peers {
            assert_eq!(peer.state, PeerState::Established);
            let algorithms = peer.classes.iter().map(|class| class.algorithms.clone());
            let algorithms: Vec<_> = algorithms.map(Option::unwrap_or_default).collect();
            assert!(algorithms[0].starts_with("ESP AES_GCM_16-256"), "{algorithms:?}");
            assert!(algorithms[1].starts_with("ESP NULL_AES_GMAC-256"), "{algorithms:?}");
        }
        wait_for(&ikes[0], "bytes counted", |report| {
            let mut classes = report.peers.iter().flat_map(|peer| &peer.classes);
            classes.all(|class| class.bytes_in > 0 && class.bytes_out > 0)
        });
    }

    fn two_peers_share_a_class() {
        let world = World::new(&["a", "b", "c"], &[ENCRYPTION]);
        let ikes = world.negotiate(&[ENCRYPTION]);
        wait_for(&ikes[0], "SAs with both peers", all_protected);
        for server in [1, 2] {
            let marks = world.hosts[server].serve();
            let address = world.hosts[server].addresses[0];
            world.hosts[0].echo(Some(ENCRYPTION), address).expect("protected traffic");
            assert_eq!(*marks.lock(), [mark(ENCRYPTION)]);
        }
    }

    fn the_kernel_asks_for_what_is_gone() {
        let mut world = World::new(&["a", "b"], &[ENCRYPTION]);
        let mut ikes = world.negotiate(&[ENCRYPTION]);
        wait_for(&ikes[0], "SAs", all_protected);
        wait_for(&ikes[1], "SAs", all_protected);
        let marks = world.hosts[1].serve();
        let ike = Arc::new(ikes.remove(0));
        world.hosts[0].watch_acquires(Arc::clone(&ike));
        // charon still believes in them.
        world.hosts[0].ip("xfrm state flush");
        let address = world.hosts[1].addresses[0];
        world.hosts[0].echo(Some(ENCRYPTION), address).expect("protected again");
        assert_eq!(*marks.lock(), [mark(ENCRYPTION)]);
    }

    fn rekeying_loses_nothing() {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let ikes = world.negotiate(&[ENCRYPTION]);
        wait_for(&ikes[0], "SAs", all_protected);
        wait_for(&ikes[1], "SAs", all_protected);
        let marks = world.hosts[1].serve();
        let spi = |ike: &Ike| ike.report().peers[0].classes[0].spi_out.clone();
        let before = spi(&ikes[0]);
        let socket = format!("unix://{}", world.hosts[0].socket().display());
        let rekey = move |round: usize| {
            if round % 50 == 25 {
                let status = std::process::Command::new("swanctl")
                    .args(["--rekey", "--child", "encryption", "--uri", &socket])
                    .stdout(std::process::Stdio::null())
                    .status();
                assert!(status.expect("swanctl").success());
            }
        };
        let address = world.hosts[1].addresses[0];
        let outcome = world.hosts[0].converse(ENCRYPTION, address, 200, rekey);
        outcome.expect("every byte comes back");
        assert_eq!(*marks.lock(), [mark(ENCRYPTION)]);
        wait_for(&ikes[0], "another SPI", |report| {
            let class = &report.peers[0].classes[0];
            class.protected && class.spi_out != before
        });
    }

    fn a_killed_charon_opens_no_hole() {
        let mut world = World::new(&["a", "b"], &[ENCRYPTION]);
        let ikes = world.negotiate(&[ENCRYPTION]);
        wait_for(&ikes[0], "SAs", all_protected);
        wait_for(&ikes[1], "SAs", all_protected);
        let marks = world.hosts[1].serve();
        let address = world.hosts[1].addresses[0];
        world.hosts[0].kill_charon();
        wait_for(&ikes[0], "the trouble", |report| report.trouble.is_some());
        world.hosts[0].echo(Some(ENCRYPTION), address).expect("the SAs in force go on");
        world.hosts[0].start_charon();
        wait_for(&ikes[0], "charon", |report| report.trouble.is_none());
        wait_for(&ikes[0], "new SAs", all_protected);
        world.hosts[0].echo(Some(ENCRYPTION), address).expect("the new SAs");
        assert_eq!(*marks.lock(), [mark(ENCRYPTION), mark(ENCRYPTION)]);
        let spi = ikes[0].report().peers[0].classes[0].spi_out.clone().expect("an SPI");
        let states = world.hosts[0].ip("xfrm state");
        assert!(states.contains(&spi), "{spi} of charon is in the kernel: {states}");
    }

    fn a_stopped_charon_is_reported_and_recovers() {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let ikes = world.negotiate(&[ENCRYPTION]);
        wait_for(&ikes[0], "SAs", all_protected);
        world.hosts[0].stop_charon(true);
        wait_for(&ikes[0], "the trouble", |report| {
            let trouble = report.trouble.as_deref();
            trouble.is_some_and(|trouble| trouble.contains("does not answer"))
        });
        world.hosts[0].stop_charon(false);
        wait_for(&ikes[0], "its answer", |report| report.trouble.is_none());
        wait_for(&ikes[0], "SAs", all_protected);
    }

    fn a_peer_with_another_key_is_refused() {
        let world = World::new(&["a", "b"], &[ENCRYPTION]);
        let (ike, _notices) = Ike::start(world.hosts[0].socket());
        let mut wrong = world.configuration(0, &[ENCRYPTION]);
        wrong.peers[0].key = IkeKey::from_seed([99; 32]).public();
        ike.configure(wrong);
        let (other, _notices) = Ike::start(world.hosts[1].socket());
        other.configure(world.configuration(1, &[ENCRYPTION]));
        wait_for(&ike, "the reason", |report| {
            let reasons = report.peers.iter().filter_map(|peer| peer.why_not.as_deref());
            reasons.into_iter().any(|reason| reason.contains("IKE key"))
        });
        assert!(!all_protected(&ike.report()));
        // The twin: with the right key.
        ike.configure(world.configuration(0, &[ENCRYPTION]));
        wait_for(&ike, "SAs", all_protected);
    }

    fn a_peer_that_is_taken_away_loses_its_sas() {
        let world = World::new(&["a", "b", "c"], &[ENCRYPTION]);
        let ikes = world.negotiate(&[ENCRYPTION]);
        wait_for(&ikes[0], "SAs with both", all_protected);
        let mut fewer = world.configuration(0, &[ENCRYPTION]);
        fewer.peers.retain(|peer| peer.name.as_str() == "b");
        ikes[0].configure(fewer);
        let gone = world.hosts[2].addresses[0].to_string();
        world::wait("the end of its SAs", || {
            !world.hosts[0].ip("xfrm state").contains(&format!("dst {gone}\n"))
        });
        wait_for(&ikes[0], "the other's", all_protected);
        let kept = world.hosts[1].addresses[0].to_string();
        assert!(world.hosts[0].ip("xfrm state").contains(&format!("dst {kept}\n")));
    }

    fn a_class_that_is_taken_away_loses_its_sas() {
        let classes = [ENCRYPTION, AUTHENTICATION];
        let world = World::new(&["a", "b"], &classes);
        let ikes = world.negotiate(&classes);
        wait_for(&ikes[0], "SAs of both classes", all_protected);
        let reqid_of = |class| format!("reqid {} ", reqid(class));
        assert!(world.hosts[0].ip("xfrm state").contains(&reqid_of(AUTHENTICATION)));
        for (host, ike) in ikes.iter().enumerate() {
            ike.configure(world.configuration(host, &[ENCRYPTION]));
        }
        world::wait("the end of its SAs", || {
            !world.hosts[0].ip("xfrm state").contains(&reqid_of(AUTHENTICATION))
        });
        wait_for(&ikes[0], "the other class", all_protected);
        assert!(world.hosts[0].ip("xfrm state").contains(&reqid_of(ENCRYPTION)));
    }
}
