//! An unmodified charon on each of several hosts: SAs by class, for programs' marked sockets.

use std::process::Command;
use std::sync::Arc;

use crate::world::{
    AH, AUTHENTICATION, ENCRYPTION, STRONG, World, all_protected, ecdsa_key, mark, reqid,
    strongswan_with_ml_kem, wait, wait_for,
};
use tokio::runtime::Runtime;
use usher_ike::{Acquire, Ike, IkeKey, PeerState, Report};
use usher_protection::Class;

pub(crate) type Marks = Arc<parking_lot::Mutex<Vec<u32>>>;

/// Hosts `a` and `b` with SAs of these classes, and the marks of the connections that `b` accepts.
pub(crate) fn pair(classes: &[Class]) -> (World, Vec<Ike>, Marks) {
    let world = World::new(&["a", "b"], classes);
    let ikes = world.negotiate(classes);
    for ike in &ikes {
        wait_for(ike, "SAs", all_protected);
    }
    let marks = world.hosts[1].serve();
    (world, ikes, marks)
}

/// Checks that traffic of each class reaches each address with the mark of the class.
fn traffic_is_marked(world: &World, marks: &Marks, classes: &[Class]) {
    for address in world.hosts[1].addresses {
        for &class in classes {
            let passed = world.hosts[0].echo(Some(class), address);
            passed.expect("protected traffic");
            let found = marks.lock().pop();
            assert_eq!(found, Some(mark(class)), "set by the inbound SA");
        }
    }
}

/// Checks how the algorithms of both classes begin, for every peer.
fn have_algorithms(report: &Report, expected: [&str; 2]) {
    for peer in &report.peers {
        for (class, expected) in peer.classes.iter().zip(expected) {
            let algorithms = class.algorithms.as_deref().unwrap_or_default();
            assert!(algorithms.starts_with(expected), "{algorithms}");
        }
    }
}

guest_test! {
    fn two_classes_share_a_peer_in_both_families() {
        let classes = [ENCRYPTION, AUTHENTICATION];
        let (world, ikes, marks) = pair(&classes);
        traffic_is_marked(&world, &marks, &classes);
        for address in world.hosts[1].addresses {
            world.hosts[0].echo(None, address).expect("traffic without a class");
            assert_eq!(marks.lock().pop(), Some(0), "plaintext has no mark");
        }
        let report = ikes[0].report();
        assert_eq!(report.peers.len(), 2, "one entry an address");
        for peer in &report.peers {
            assert_eq!(peer.state, PeerState::Established);
        }
        have_algorithms(&report, ["ESP AES_GCM_16-256", "ESP NULL_AES_GMAC-256"]);
        let states = world.hosts[0].ip("-s xfrm state");
        assert!(states.contains("hard 1181116006(packets)"), "{states}");
        // Not the 0 of this charon's settings.
        let windows = states.matches("replay-window 32 ").count();
        assert!(windows >= classes.len() * report.peers.len(), "{states}");
        wait_for(&ikes[0], "bytes counted", |report| {
            let mut classes = report.peers.iter().flat_map(|peer| &peer.classes);
            classes.all(|class| class.bytes_in > 0 && class.bytes_out > 0)
        });
    }

    // Threat model: P70
    fn a_stock_charon_without_labels_is_a_peer_of_one_class() {
        let classes = [ENCRYPTION, AUTHENTICATION];
        let mut world = World::new(&["a", "b"], &classes);
        let marks = world.hosts[1].serve();
        let (ike, _notices) = world.hosts[0].start_ike();
        let ike = Arc::new(ike);
        world.hosts[0].watch_acquires(Arc::clone(&ike));
        let [a, b] = [&world.hosts[0], &world.hosts[1]];
        b.write_swanctl_conf(a, "aes128gcm16-x25519");
        b.load_all();
        let mut configuration = world.configuration(0, &classes);
        configuration.peers[0].addresses.truncate(1);
        configuration.peers[0].unlabelled = Some(ENCRYPTION);
        ike.configure(configuration);
        let why_not = |report: &Report, class: usize| {
            let why_not = report.peers.first().map(|peer| peer.classes[class].why_not.clone());
            why_not.flatten().unwrap_or_default()
        };
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| a.echo(Some(ENCRYPTION), b.addresses[0]));
            wait("a connection that waits", || a.has_connecting());
            wait_for(&ike, "other algorithms", |report| {
                why_not(report, 0).contains("no algorithm in common")
            });
            assert!(marks.lock().is_empty(), "nothing in the clear");
            b.write_swanctl_conf(a, "aes256gcm16-x25519");
            b.load_all();
            waiting.join().expect("no panic").expect("protected traffic");
        });
        let only = |report: &Report| {
            let classes = &report.peers[0].classes;
            classes[0].protected && classes[0].bytes_in > 0 && !classes[1].protected
        };
        wait_for(&ike, "one class", only);
        let said = why_not(&ike.report(), 1);
        assert!(said.contains("`unlabelled encryption`"), "{said}");
        // Both hosts rekey the SAs.
        for (host, child) in [(a, "encryption"), (b, "any")] {
            let former = a.spis_to(b);
            host.swanctl(&["--rekey", "--child", child]);
            wait("the new SAs alone", || {
                let spis = a.spis_to(b);
                spis.len() == 1 && spis != former
            });
            a.echo(Some(ENCRYPTION), b.addresses[0]).expect("protected traffic");
        }
        assert_eq!(marks.lock().len(), 3);
    }

    // Threat model: P70
    fn a_stock_charon_without_ed25519_is_a_peer() {
        let classes = [ENCRYPTION];
        let world = World::new(&["a", "b"], &classes);
        let marks = world.hosts[1].serve();
        let [a, b] = [&world.hosts[0], &world.hosts[1]];
        let [own, other, third] = [1, 2, 3].map(ecdsa_key);
        let own = Arc::new(own);
        b.write_swanctl_conf_with(a, "aes256gcm16-x25519", [&other, &own]);
        b.load_all();
        let (ike, _notices) = a.start_ike();
        let expecting = |key: &IkeKey| {
            let mut configuration = world.configuration(0, &classes);
            configuration.keys.push(Arc::clone(&own));
            configuration.stated.push(own.public());
            let peer = &mut configuration.peers[0];
            peer.addresses.truncate(1);
            peer.keys = vec![key.public()];
            peer.unlabelled = Some(ENCRYPTION);
            configuration
        };
        ike.configure(expecting(&third));
        wait_for(&ike, "another key", |report| {
            let classes = report.peers.iter().flat_map(|peer| &peer.classes);
            let mut why_not = classes.filter_map(|class| class.why_not.as_deref());
            why_not.any(|why_not| why_not.contains("its IKE key is not the `ike-key`"))
        });
        assert_eq!(a.spis_to(b), [""; 0]);
        // The twin: its own.
        ike.configure(expecting(&other));
        wait_for(&ike, "SAs", all_protected);
        a.echo(Some(ENCRYPTION), b.addresses[0]).expect("protected traffic");
        assert_eq!(marks.lock().len(), 1);
        wait_for(&ike, "bytes counted", |report| report.peers[0].classes[0].bytes_in > 0);
        assert!(a.log().contains("authentication of 'b' with ECDSA"), "{}", a.log());
    }

    // Threat model: P70
    fn ah_is_negotiated_beside_esp() {
        let classes = [AUTHENTICATION, AH];
        let (world, ikes, marks) = pair(&classes);
        traffic_is_marked(&world, &marks, &classes);
        have_algorithms(&ikes[0].report(), ["ESP NULL_AES_GMAC-256", "AH HMAC_SHA2_256_128"]);
    }

    /// With a charon that has no ML-KEM, the other classes are negotiated.
    // Threat model: P75
    fn strong_is_negotiated_by_a_hybrid_exchange() {
        let Some(strongswan) = strongswan_with_ml_kem() else {
            println!("skipped: needs a strongSwan with ML-KEM, which scripts/setup-vm fetches");
            return;
        };
        let classes = [ENCRYPTION, STRONG];
        let with = [Some(strongswan.clone()), Some(strongswan), None];
        let world = World::with_strongswans(&["a", "b", "c"], &classes, with.to_vec());
        let ikes = world.negotiate(&classes);
        let [a, b, c] = &ikes[..] else { unreachable!("three hosts") };
        let with = |report: &Report, name: &str, class: usize| {
            let peers = report.peers.iter().filter(|peer| peer.name.as_str() == name);
            peers.map(|peer| peer.classes[class].clone()).collect::<Vec<_>>()
        };
        let are_protected = |report: &Report, name: &str, class: usize| {
            let addresses = with(report, name, class);
            addresses.len() == 2 && addresses.iter().all(|class| class.protected)
        };
        for (ike, peer) in [(a, "b"), (b, "a")] {
            wait_for(ike, "strong SAs", |report| are_protected(report, peer, 1));
            let report = ike.report();
            assert_eq!(report.lacks, None);
            let mut peers = report.peers.iter().filter(|own| own.name.as_str() == peer);
            let is_hybrid = |algorithms: &str| algorithms.contains("ML_KEM_768");
            assert!(
                peers.all(|peer| peer.algorithms.as_deref().is_some_and(is_hybrid)),
                "{report:?}"
            );
            let mut strong = with(&report, peer, 1).into_iter();
            assert!(
                strong.all(|class| class.algorithms.as_deref().is_some_and(is_hybrid)),
                "{report:?}"
            );
        }
        wait_for(a, "SAs with the third", |report| are_protected(report, "c", 0));
        assert!(!are_protected(&a.report(), "c", 1), "never without");
        assert!(c.report().lacks.is_some_and(|words| words.contains("ML-KEM")));
        let marks = world.hosts[1].serve();
        for address in world.hosts[1].addresses {
            world.hosts[0].echo(Some(STRONG), address).expect("protected traffic");
        }
        assert_eq!(*marks.lock(), [mark(STRONG), mark(STRONG)]);
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
        let (mut world, mut ikes, marks) = pair(&[ENCRYPTION]);
        let ike = Arc::new(ikes.remove(0));
        world.hosts[0].watch_acquires(Arc::clone(&ike));
        // A late acquire, for SAs that have come meanwhile.
        let address = world.hosts[1].addresses[0];
        let before = ike.report().peers[0].classes[0].spi_out.clone();
        ike.acquire(Acquire {
            source: world.hosts[0].addresses[0],
            peer: address,
            reqid: reqid(ENCRYPTION),
        });
        world.hosts[0].echo(Some(ENCRYPTION), address).expect("the SAs in force go on");
        assert_eq!(ike.report().peers[0].classes[0].spi_out, before);
        // charon does not notice that the SAs are gone.
        world.hosts[0].ip("xfrm state flush");
        world.hosts[0].echo(Some(ENCRYPTION), address).expect("protected again");
        assert_eq!(*marks.lock(), [mark(ENCRYPTION); 2]);
    }

    /// SAs that are in force hide for a while that nothing can be negotiated any more.
    // Threat model: P68
    fn what_swanctl_unloads_is_negotiated_again() {
        let (mut world, mut ikes, marks) = pair(&[ENCRYPTION]);
        let ike = Arc::new(ikes.remove(0));
        world.hosts[0].watch_acquires(Arc::clone(&ike));
        let address = world.hosts[1].addresses[0];
        for _ in 0..2 {
            for host in &world.hosts {
                host.load_all();
            }
            world.hosts[0].terminate();
            world.hosts[0].echo(Some(ENCRYPTION), address).expect("protected again");
        }
        assert_eq!(*marks.lock(), [mark(ENCRYPTION); 2], "never in the clear");
    }

    /// The kernel measures the ages of SAs by the clock.
    // Threat model: P76
    fn a_clock_set_by_days_opens_no_hole() {
        let mut world = World::new(&["a", "b"], &[ENCRYPTION]);
        let mut ikes = world.negotiate(&[ENCRYPTION]);
        wait_for(&ikes[0], "SAs", all_protected);
        wait_for(&ikes[1], "SAs", all_protected);
        let marks = world.hosts[1].serve();
        let ike = Arc::new(ikes.remove(0));
        world.hosts[0].watch_acquires(Arc::clone(&ike));
        let address = world.hosts[1].addresses[0];
        // The changes add up to none, for other tests that run at the same time.
        for days in ["+3 days", "-10 days", "+7 days"] {
            let set = Command::new("date").args(["-s", days]).status();
            assert!(set.expect("date").success());
            world.hosts[0].echo(Some(ENCRYPTION), address).expect("the SAs in force go on");
            wait_for(&ike, "charon's list", all_protected);
        }
        world.hosts[0].ip("xfrm state flush");
        world.hosts[0].echo(Some(ENCRYPTION), address).expect("new SAs come");
        assert_eq!(*marks.lock(), [mark(ENCRYPTION); 4], "never in the clear");
    }

    // Threat model: P61
    fn another_address_of_the_host_ends_no_sas() {
        let (mut world, mut ikes, marks) = pair(&[ENCRYPTION]);
        let ike = Arc::new(ikes.remove(0));
        world.hosts[0].watch_acquires(Arc::clone(&ike));
        let spi = || ike.report().peers[0].classes[0].spi_out.clone();
        let before = spi();
        let source = "10.0.0.77".parse().expect("an address");
        world.hosts[0].ip("addr add 10.0.0.77/24 dev net");
        let address = world.hosts[1].addresses[0];
        world.hosts[0].send_from(ENCRYPTION, source, address);
        wait_for(&ike, "the address", |report| {
            report.peers[0].classes[0].sources_without == [source]
        });
        world.hosts[0].echo(Some(ENCRYPTION), address).expect("the SAs of other programs");
        assert_eq!(*marks.lock(), [mark(ENCRYPTION)]);
        assert_eq!(spi(), before, "nothing has ended");
    }

    fn an_interface_that_was_down_is_protected_again() {
        let (world, _ikes, marks) = pair(&[ENCRYPTION]);
        let host = &world.hosts[0];
        host.ip("link set net down");
        host.ip("link set net up");
        // The kernel drops IPv6 addresses with the link.
        host.ip(&format!("addr replace {}/64 dev net nodad", host.addresses[1]));
        for address in world.hosts[1].addresses {
            wait("protected traffic", || host.echo(Some(ENCRYPTION), address).is_ok());
        }
        assert!(marks.lock().iter().all(|own| *own == mark(ENCRYPTION)), "never in the clear");
    }

    fn a_replaced_address_is_protected_once_the_peer_knows_it() {
        let (mut world, mut ikes, marks) = pair(&[ENCRYPTION]);
        let other = ikes.remove(1);
        let ike = Arc::new(ikes.remove(0));
        world.hosts[0].watch_acquires(Arc::clone(&ike));
        world.hosts[0].ip("addr add 10.0.0.99/24 dev net");
        world.hosts[0].ip("addr del 10.0.0.1/24 dev net");
        world.hosts[0].ip("addr replace 10.0.0.99/24 dev net");
        world.hosts[0].addresses[0] = "10.0.0.99".parse().expect("an address");
        // As an administrator would: the peer's policy names the new address.
        other.configure(world.configuration(1, &[ENCRYPTION]));
        wait_for(&other, "SAs with it", all_protected);
        let address = world.hosts[1].addresses[0];
        wait("protected traffic", || {
            world.hosts[0].echo(Some(ENCRYPTION), address).is_ok()
        });
        assert!(marks.lock().iter().all(|own| *own == mark(ENCRYPTION)), "never in the clear");
    }

    // Threat model: P69
    fn a_killed_charon_opens_no_hole() {
        let (mut world, ikes, marks) = pair(&[ENCRYPTION]);
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

    // Threat model: P69
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

    fn a_peer_that_is_taken_away_loses_its_sas() {
        let world = World::new(&["a", "b", "c"], &[ENCRYPTION]);
        let ikes = world.negotiate(&[ENCRYPTION]);
        wait_for(&ikes[0], "SAs with both", all_protected);
        let mut fewer = world.configuration(0, &[ENCRYPTION]);
        fewer.peers.retain(|peer| peer.name.as_str() == "b");
        ikes[0].configure(fewer);
        let gone = world.hosts[2].addresses[0].to_string();
        wait("the end of its SAs", || {
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
        wait("the end of its SAs", || {
            !world.hosts[0].ip("xfrm state").contains(&reqid_of(AUTHENTICATION))
        });
        wait_for(&ikes[0], "the other class", all_protected);
        assert!(world.hosts[0].ip("xfrm state").contains(&reqid_of(ENCRYPTION)));
    }
}
