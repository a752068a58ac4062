//! Changes of the policy, and restarts of the protector.

use usher_protection::Level;

use super::*;

tests! {
    // Threat model: P50
    fn a_restart_changes_nothing_for_live_datagram_sockets(world) {
        let mut settings = settings(world);
        settings.pins = Some("/mnt/bpf/ipsec".into());
        std::fs::copy(OTHER, "/mnt/second").unwrap();
        let first = (GOVERNED, vec![
            ("10.1.0.0/24", mandatory(ENCRYPTION)),
            ("10.1.0.3/32", To::Trusted),
        ]);
        // If both were numbered at once, this one would come first.
        let second = ("/mnt/second", vec![
            ("10.0.0.0/24", mandatory(ENCRYPTION)),
            ("10.1.0.2/32", To::Trusted),
        ]);
        let both = tables(&[second, first.clone()]);
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        ipsec.apply(&tables(&[first])).unwrap();
        ipsec.apply(&both).unwrap();
        let mut actors = [Actor::governed(), Actor::at("/mnt/second")];
        let trusted = ["10.1.0.3", "10.1.0.2"];
        for (actor, trusted) in actors.iter_mut().zip(trusted) {
            actor.run("u = udp()");
            assert_eq!(actor.errno(&format!("u.sendto(b'x', ('{trusted}', 9))")), 0);
        }
        let marks = |actors: &mut [Actor; 2]| actors.each_mut().map(|actor| actor.number("mark(u)"));
        let former = marks(&mut actors);
        let (entries, counted) = (ipsec.spd_entries().unwrap(), ipsec.counters().unwrap());
        for _ in 0..2 {
            drop(ipsec);
            ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
            assert_eq!(ipsec.apply(&both).unwrap().spd_changes, 0);
            assert_eq!(ipsec.spd_entries().unwrap(), entries);
            for (actor, trusted) in actors.iter_mut().zip(trusted) {
                assert_eq!(actor.errno(&format!("u.sendto(b'x', ('{trusted}', 9))")), 0);
            }
            assert_eq!(actors[1].errno("u.sendto(b'x', ('10.1.0.3', 9))"), EPERM);
            assert_eq!(marks(&mut actors), former);
            assert_eq!(ipsec.counters().unwrap().corrected, counted.corrected);
        }
        // Another policy: sockets still carry the numbers of what it does not have.
        ipsec.apply(&usher_protection::Tables::default()).unwrap();
        drop(ipsec);
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        ipsec.apply(&both).unwrap();
        assert_eq!(actors[1].number("mark(udp())"), (3 * SIGNED) | DISCARD);
    }

    fn another_policy_counts_for_sockets_that_are_open(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", To::Trusted)])])).unwrap();
        let mut governed = Actor::governed();
        let mut peer = Actor::peer();
        peer.run("a = tcp(); a.bind(('', 80)); a.listen(); u = udp(); u.bind(('', 9))");
        governed.run("u = udp(); u.sendto(b'x', ('10.1.0.2', 9)); s = tcp(); s.connect(('10.1.0.2', 80))");
        peer.run("c, _ = a.accept(); u.recv(1)");
        ipsec.apply(&secure()).unwrap();
        assert_eq!(governed.errno("u.sendto(b'x', ('10.1.0.2', 9))"), 0, "lost: its mark is old");
        // Other rules have another signature.
        assert_eq!(governed.number("mark(u)"), (2 * SIGNED) | DISCARD);
        assert_eq!(peer.errno("u.settimeout(2); u.recv(1)"), libc::ETIMEDOUT);
        assert_eq!(ipsec.counters().unwrap().kept_plain, 1);
        // A connection has its new mark already.
        assert_eq!(governed.number("mark(s)"), mark(ENCRYPTION, Level::Mandatory));
        governed.errno("s.sendall(b'x')");
        assert_eq!(peer.errno("c.settimeout(2); c.recv(1)"), libc::ETIMEDOUT);
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", To::Trusted)])])).unwrap();
        // The first datagram corrects the mark.
        governed.errno("u.sendto(b'x', ('10.1.0.2', 9))");
        governed.run("u.sendto(b'x', ('10.1.0.2', 9))");
        assert_eq!(peer.run("u.settimeout(60); r = u.recv(1)"), "b'x'");
    }

    // Threat model: P51
    fn a_policy_that_is_not_complete_changes_nothing(world) {
        let mut settings = settings(world);
        settings.pins = Some("/mnt/bpf/ipsec".into());
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        governed.run("a = tcp(); a.bind(('', 80)); a.listen()");
        peer.run("kept = []");
        let connect = "s = tcp(); kept.append(s); s.connect(('10.1.0.1', 80))";
        assert_eq!(peer.in_vain(connect), libc::ETIMEDOUT);
        // The first application, so the first number, is now another's, which may do everything.
        let trusting = tables(&[
            ("/no/such/program", vec![("0.0.0.0/0", To::Trusted), ("::/0", To::Trusted)]),
            (GOVERNED, vec![("10.1.0.0/24", optional(AUTHENTICATION))]),
        ]);
        // The table comes in place, its generation does not.
        other.run("freeze('/mnt/bpf/ipsec/state')");
        let before = (ipsec.wanted().clone(), ipsec.spd_entries().unwrap());
        ipsec.apply(&trusting).unwrap_err();
        assert_eq!((ipsec.wanted().clone(), ipsec.spd_entries().unwrap()), before);
        assert_eq!(ipsec.put_back().unwrap(), 0);
        assert_eq!(ipsec.follow_programs().unwrap(), None);
        let decided = ipsec.monitor().decide(0, "10.1.0.2".parse().unwrap(), 1, 1).unwrap();
        assert_eq!(decided, ENCRYPTION.mark(Level::Mandatory));
        drop(ipsec);
        assert_eq!(peer.in_vain(connect), libc::ETIMEDOUT);
        assert_eq!(governed.number("mark(tcp())"), SIGNED | DISCARD);
        assert_eq!(governed.errno("udp().connect(('10.9.0.1', 9))"), EPERM);
        assert_eq!(governed.errno("udp().sendto(b'x', ('10.1.0.3', 9))"), 0);
    }

    // Threat model: P50
    fn a_restart_that_fails_leaves_the_former_entries(world) {
        let mut settings = settings(world);
        settings.pins = Some("/mnt/bpf/ipsec".into());
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        ipsec.apply(&secure()).unwrap();
        let former = ipsec.spd_entries().unwrap();
        drop(ipsec);
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        // A host that has negotiated, as the next process knows.
        ipsec.hold_all([(ENCRYPTION, "10.1.0.9".parse().unwrap())]).unwrap();
        Actor::other().run("freeze('/mnt/bpf/ipsec/state')");
        ipsec.apply(&secure()).unwrap_err();
        let left = ipsec.spd_entries().unwrap();
        assert!(former.iter().all(|(selected, entry)| left.get(selected) == Some(entry)), "{left:?}");
        let own = ["::1", "fd77::2"].map(|address| address.parse().unwrap());
        ipsec.set_own_addresses(own.into()).unwrap();
        assert_eq!(ipsec.put_back().unwrap(), 0);
        assert_eq!(ipsec.spd_entries().unwrap(), left);
    }

    fn the_first_number_is_another_program_s_in_the_next_policy(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let mut governed = Actor::governed();
        let mut peer = Actor::peer();
        governed.run("a = tcp(); a.bind(('', 80)); a.listen()");
        peer.run("kept = []");
        let connect = "s = tcp(); kept.append(s); s.connect(('10.1.0.1', 80))";
        assert_eq!(peer.in_vain(connect), libc::ETIMEDOUT);
        let all = vec![("0.0.0.0/0", To::Trusted), ("::/0", To::Trusted)];
        ipsec.apply(&tables(&[
            ("/no/such/program", all.clone()),
            (GOVERNED, vec![("10.1.0.0/24", mandatory(ENCRYPTION))]),
        ])).unwrap();
        assert_eq!(peer.in_vain(connect), libc::ETIMEDOUT);
        ipsec.apply(&tables(&[("/no/such/program", vec![]), (GOVERNED, all)])).unwrap();
        assert_eq!(peer.errno(connect), 0);
    }

    // Threat model: P50
    fn what_is_pinned_outlives_the_process(world) {
        let mut settings = settings(world);
        settings.pins = Some("/mnt/bpf/ipsec".into());
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        sees_calls(&ipsec);
        ipsec.apply(&secure()).unwrap();
        drop(ipsec);
        let mut governed = Actor::governed();
        assert_eq!(governed.number("mark(tcp())"), SIGNED | DISCARD);
        assert_eq!(governed.errno("udp().connect(('10.9.0.1', 9))"), EPERM);
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        assert_eq!(governed.number("mark(tcp())"), SIGNED | DISCARD);
        assert_eq!(ipsec.apply(&secure()).unwrap().spd_changes, 0);
        ipsec.close().unwrap();
        eventually("nothing is governed", || governed.number("mark(tcp())") == 0);
        assert!(!std::path::Path::new("/mnt/bpf/ipsec").exists());
    }
}
