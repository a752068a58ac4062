//! Peers of optional classes that are held to protection.

use super::*;

tests! {
    // Threat model: P4
    fn an_optional_peer_that_is_held_is_not_served_in_the_clear(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", optional(ENCRYPTION))])])).unwrap();
        let mut governed = Actor::governed();
        let mut peer = Actor::peer();
        governed.run("a = tcp(); a.bind(('', 80)); a.listen()");
        let connect = "s = tcp(); s.bind(('10.1.0.2', 0)); s.connect(('10.1.0.1', 80))";
        let to_peer = "s = tcp(); s.connect(('10.1.0.2', 80))";
        peer.run("a = tcp(); a.bind(('', 80)); a.listen()");
        assert_eq!(peer.errno(connect), 0);
        assert_eq!(governed.errno(to_peer), 0);
        let peer_address = B.parse().unwrap();
        ipsec.hold(ENCRYPTION, peer_address).unwrap();
        assert_eq!(peer.in_vain(connect), libc::ETIMEDOUT);
        assert_ne!(governed.in_vain(to_peer), 0);
        // Another peer is not held.
        assert_eq!(peer.errno(&connect.replace("0.2", "0.3")), 0);
        assert!(ipsec.let_go(ENCRYPTION, peer_address).unwrap());
        assert_eq!(peer.errno(connect), 0);
    }

    fn a_peer_without_room_is_not_held(world) {
        const ROOM: u32 = 65_536;
        if is_emulated() {
            println!("skipped: 65,536 peers take too long in an emulated machine");
            return;
        }
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", optional(ENCRYPTION))])])).unwrap();
        let peer = |number: u32| std::net::Ipv4Addr::from(0x1e00_0000 + number).into();
        ipsec.hold_all((0..ROOM).map(|number| (ENCRYPTION, peer(number)))).unwrap();
        let entries = ipsec.wanted().len();
        let refused = ipsec.hold(ENCRYPTION, peer(ROOM)).unwrap_err();
        assert!(matches!(refused, usher_ipsec::IpsecError::HeldFull(_)), "{refused}");
        assert!(refused.to_string().contains("mandatory"));
        assert_eq!(ipsec.wanted().len(), entries);
        assert_eq!(ipsec.put_back().unwrap(), 0);
        // With room the peer is held.
        assert!(ipsec.let_go(ENCRYPTION, peer(0)).unwrap());
        assert!(ipsec.hold(ENCRYPTION, peer(ROOM)).unwrap());
    }

    // Threat model: P4
    fn a_held_peer_stays_held_until_it_is_let_go(world) {
        let mut settings = settings(world);
        settings.pins = Some("/mnt/bpf/ipsec".into());
        let tables = tables(&[(GOVERNED, vec![("10.1.0.0/24", optional(ENCRYPTION))])]);
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        ipsec.apply(&tables).unwrap();
        let (mut governed, mut peer) = (Actor::governed(), Actor::peer());
        governed.run("a = tcp(); a.bind(('', 80)); a.listen()");
        let connect = "s = tcp(); s.bind(('10.1.0.2', 0)); s.connect(('10.1.0.1', 80))";
        let from_other = connect.replace("0.2", "0.3");
        let [one, other] = [B, B_TOO].map(|peer| peer.parse().unwrap());
        ipsec.hold(ENCRYPTION, one).unwrap();
        ipsec.hold(ENCRYPTION, other).unwrap();
        let entries = ipsec.spd_entries().unwrap();
        drop(ipsec);
        // The next process holds them, in the SPD too.
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        ipsec.apply(&tables).unwrap();
        assert_eq!(ipsec.spd_entries().unwrap(), entries);
        assert_eq!(peer.in_vain(connect), libc::ETIMEDOUT);
        // One of them leaves the policy.
        assert_eq!(ipsec.retain_held(|_, peer| peer != one).unwrap(), 1);
        // The entries of the peer that was let go, by class and by signature, are an optional peer's again.
        let let_go = ipsec.spd_entries().unwrap();
        let of = |(selected, entry): (&usher_ipsec::Selected, &usher_ipsec::Entry)| (*selected, entry.action);
        let changed: Vec<_> = let_go.iter().filter(|(selected, entry)| entries[*selected] != **entry).map(of).collect();
        let optional = usher_ipsec::Action::Protect { reqid: usher_ipsec::reqid(ENCRYPTION), optional: true };
        assert_eq!(changed.len(), 2, "{changed:?}");
        for (selected, action) in changed {
            assert_eq!((selected.destination, action), (one.into(), Some(optional)));
        }
        assert_eq!(let_go.len(), entries.len());
        assert_eq!(&let_go, ipsec.wanted());
        assert_eq!(peer.errno(connect), 0);
        assert_eq!(peer.in_vain(&from_other), libc::ETIMEDOUT);
        assert_eq!(ipsec.retain_held(|_, peer| peer != one).unwrap(), 0);
        ipsec.close().unwrap();
    }
}
