//! Protected services: nothing passes in the clear, even while the SPD lacks its entries.

use usher_ipsec::{Ipsec, Settings};
use usher_protection::{Destination, ProtectedService, Tables};

use super::{FLUSH, shell};
use crate::world::*;

/// Another party's entry, before ours.
const PASS_ALL: &str =
    "for to in 0.0.0.0/0 ::/0; do ip xfrm policy add dir out dst $to priority 1 action allow; done";

/// Port 143 of host B, over encrypted connections only.
fn reached() -> Tables {
    let destination = |peer: &str| Destination {
        peer: peer.parse().unwrap(),
        port: 143,
        class: ENCRYPTION,
    };
    let mut tables = Tables::default();
    tables.add_services(vec![], vec![destination(B), destination(B6)]);
    tables
}

/// Port 143 of this host, over encrypted connections only.
fn served() -> Tables {
    let service = ProtectedService {
        port: 143,
        classes: [ENCRYPTION].into(),
    };
    let mut tables = Tables::default();
    tables.add_services(vec![service], vec![]);
    tables
}

/// Protection with its netfilter programs. None if the kernel does not accept them.
fn open_with_services(world: &World) -> Option<Ipsec> {
    let open = Ipsec::probe_services().map(|()| open(world));
    open.map_err(|reason| println!("skipped: {reason}")).ok()
}

const TWIN: u16 = 144;

/// An older connection for each family, from host A to this port of host B or the reverse: `s4` and
/// `s6` here, `c4` and `c6` there. Those to `TWIN` are not kept back and have all the time they take.
fn connect(near: &mut Actor, far: &mut Actor, to: [&str; 2], port: u16) {
    let limit = if port == TWIN { 60 } else { 1 };
    far.run(&format!("l = tcp(6); l.bind(('', {port})); l.listen()"));
    for (family, to) in [4, 6].into_iter().zip(to) {
        near.run(&format!(
            "s{family} = tcp({family}); s{family}.connect(('{to}', {port})); s{family}.settimeout({limit})"
        ));
        far.run(&format!(
            "c{family}, _ = l.accept(); c{family}.settimeout({limit})"
        ));
    }
}

tests! {
    // Threat model: P13
    fn programs_of_services_that_somebody_detached_are_put_back(world) {
        if let Err(reason) = Ipsec::probe_services() {
            println!("skipped: {reason}");
            return;
        }
        let settings = Settings { pins: Some("/mnt/bpf/ipsec".into()), ..settings(world) };
        let mut ipsec = Ipsec::open(&settings).unwrap();
        let (mut near, mut far) = (Actor::other(), Actor::peer());
        far.run("l = tcp(); l.bind(('', 143)); l.listen()");
        ipsec.apply(&reached()).unwrap();
        shell(FLUSH);
        let connect = format!("t = tcp(); t.connect(('{B}', 143))");
        assert_eq!(near.in_vain(&connect), libc::ETIMEDOUT);
        // The pins stay.
        shell("for link in /mnt/bpf/ipsec/link_departs_* /mnt/bpf/ipsec/link_enters_*; do bpftool link detach pinned $link; done");
        assert_eq!(near.errno(&connect), 0);
        assert!(ipsec.mend_services().unwrap());
        assert_eq!(near.in_vain(&connect), libc::ETIMEDOUT);
        // The twin: what is in force is left alone.
        assert!(!ipsec.mend_services().unwrap());
        assert_eq!(near.in_vain(&connect), libc::ETIMEDOUT);
    }

    // Threat model: P9, P54
    fn nothing_reaches_a_destination_in_the_clear(world) {
        let Some(mut ipsec) = open_with_services(world) else { return };
        let (mut near, mut far) = (Actor::other(), Actor::peer());
        let (mut near_too, mut far_too) = (Actor::other(), Actor::peer());
        connect(&mut near, &mut far, [B, B6], 143);
        connect(&mut near_too, &mut far_too, [B, B6], TWIN);
        far_too.run("seen = capture('cable')");
        ipsec.apply(&reached()).unwrap();
        for by_others in [FLUSH, PASS_ALL] {
            shell(by_others);
            for family in [4, 6] {
                let before = ipsec.service_counters().unwrap();
                // Older connections and new ones, and answers.
                near.run(&format!("s{family}.send(b'x')"));
                let to = if family == 4 { B } else { B6 };
                let connect = format!("t = tcp({family}); t.connect(('{to}', 143))");
                assert_eq!(near.in_vain(&connect), libc::ETIMEDOUT, "{to}");
                assert!(ipsec.service_counters().unwrap().service_kept > before.service_kept);
                assert_eq!(far_too.run("r = protocols(seen)"), "{}", "{to}, {by_others}");
                far.run(&format!("c{family}.send(b'x')"));
                // The kernel sends it again, later and later.
                eventually("it is refused", || {
                    ipsec.service_counters().unwrap().service_refused > before.service_refused
                });
                assert_eq!(near.errno(&format!("s{family}.recv(1)")), libc::ETIMEDOUT, "{to}");
                // The twin: another port.
                near_too.run(&format!("s{family}.send(b'x')"));
                assert_eq!(far_too.run(&format!("r = c{family}.recv(1)")), "b'x'");
                far_too.run(&format!("c{family}.send(b'x')"));
                assert_eq!(near_too.run(&format!("r = s{family}.recv(1)")), "b'x'");
                far_too.run("protocols(seen)");
            }
        }
        // Without the demand what has waited arrives.
        ipsec.apply(&Tables::default()).unwrap();
        near.run("s4.settimeout(60)");
        assert_eq!(near.run("r = s4.recv(1)"), "b'x'");
    }

    // Threat model: P26
    fn nothing_reaches_a_destination_by_the_way_of_another(world) {
        let Some(mut ipsec) = open_with_services(world) else { return };
        let (mut near, mut far) = (Actor::other(), Actor::peer());
        far.run("seen = capture('cable')");
        // By another address of host B: a loose source route, and segments.
        let loose = format!("t = tcp(); t.setsockopt(0, 4, bytes([131, 7, 4]) + socket.inet_aton('{B_TOO}') + b'\\0'); t.connect(('{B}', 143))");
        let segments = format!("t = tcp(6); t.setsockopt(41, 57, bytes([0, 4, 4, 1, 1, 0, 0, 0]) + 2 * socket.inet_pton(10, 'fd01::3')); t.connect(('{B6}', 143))");
        for way in [loose, segments] {
            // The twin: without a demand it leaves.
            ipsec.apply(&Tables::default()).unwrap();
            near.in_vain(&way);
            eventually("it leaves", || far.run("r = protocols(seen)") != "{}");
            ipsec.apply(&reached()).unwrap();
            shell(FLUSH);
            near.run("t.close()");
            far.run("protocols(seen)");
            let unreadable = || ipsec.service_counters().unwrap().service_unreadable;
            let before = unreadable();
            assert_eq!(near.in_vain(&way), libc::ETIMEDOUT, "{way}");
            assert!(unreadable() > before, "{way}");
            assert_eq!(far.run("r = protocols(seen)"), "{}", "{way}");
        }
    }

    // Threat model: P9
    fn no_service_answers_in_the_clear(world) {
        let Some(mut ipsec) = open_with_services(world) else { return };
        let (mut near, mut far) = (Actor::other(), Actor::peer());
        let (mut near_too, mut far_too) = (Actor::other(), Actor::peer());
        connect(&mut far, &mut near, ["10.1.0.1", "fd01::1"], 143);
        connect(&mut far_too, &mut near_too, ["10.1.0.1", "fd01::1"], TWIN);
        far_too.run("seen = capture('cable')");
        ipsec.apply(&served()).unwrap();
        shell(FLUSH);
        for (family, from) in [(4, "10.1.0.1"), (6, "fd01::1")] {
            let kept = || ipsec.service_counters().unwrap().service_kept;
            let before = kept();
            near.run(&format!("c{family}.send(b'x')"));
            eventually("it is kept back", || kept() > before);
            // Answers to SYNs, and resets.
            for act in ["pass", "l.close()"] {
                near.run(act);
                let connect = format!("t = tcp({family}); t.connect(('{from}', 143))");
                assert_eq!(far.in_vain(&connect), libc::ETIMEDOUT, "{from} {act}");
            }
            assert_eq!(far_too.run("r = protocols(seen)"), "{}", "{from}");
            // The twin.
            near_too.run(&format!("c{family}.send(b'x')"));
            assert_eq!(far_too.run(&format!("r = s{family}.recv(1)")), "b'x'");
            far_too.run("protocols(seen)");
        }
    }

    // Threat model: P53
    fn an_application_block_decides_before_its_destination(world) {
        let Some(mut ipsec) = open_with_services(world) else { return };
        let mut at_b = Actor::peer();
        at_b.run("seen = capture('cable')");
        let mut policy = tables(&[(GOVERNED, vec![("10.1.0.0/24", To::Trusted)])]);
        let destinations = reached().destinations;
        policy.add_services(vec![], destinations);
        ipsec.apply(&policy).unwrap();
        let connect = format!("t = tcp(); t.connect(('{B}', 143))");
        Actor::other().in_vain(&connect);
        assert_eq!(at_b.run("r = protocols(seen)"), "{}");
        Actor::governed().errno(&connect);
        assert!(at_b.run("r = protocols(seen)").starts_with("{6: "));
        assert_eq!(ipsec.service_counters().unwrap().service_kept, 0);
    }

    // Threat model: P9
    fn demands_of_services_outlive_the_process(world) {
        if let Err(reason) = Ipsec::probe_services() {
            println!("skipped: {reason}");
            return;
        }
        let settings = Settings { pins: Some("/mnt/bpf/usher".into()), ..settings(world) };
        let open = || Ipsec::open(&settings).unwrap();
        let mut far = Actor::peer();
        far.run("l = tcp(6); l.bind(('', 143)); l.listen(); seen = capture('cable')");
        let mut near = Actor::other();
        let mut check = |kept: bool| {
            shell(FLUSH);
            let connect = format!("t = tcp(); t.connect(('{B}', 143))");
            let found = if kept { near.in_vain(&connect) } else { near.errno(&connect) };
            assert_eq!(found != 0, kept);
            assert_eq!(far.run("r = protocols(seen)") == "{}", kept);
        };
        check(false);
        open().apply(&reached()).unwrap();
        check(true);
        // Twice, because new programs take the priority that the former ones do not have.
        for _ in 0..2 {
            let mut next = open();
            check(true);
            next.apply(&reached()).unwrap();
        }
        let mut last = open();
        last.apply(&Tables::default()).unwrap();
        check(false);
        last.apply(&reached()).unwrap();
        check(true);
        last.close().unwrap();
        check(false);
    }

    fn services_without_room_change_nothing(world) {
        const ROOM: u32 = 131_072;
        if is_emulated() {
            println!("skipped: 131,072 services take too long in an emulated machine");
            return;
        }
        let Some(mut ipsec) = open_with_services(world) else { return };
        ipsec.apply(&reached()).unwrap();
        let before = (ipsec.spd_entries().unwrap(), ipsec.wanted().clone());
        let destination = |number: u32| Destination {
            peer: std::net::Ipv4Addr::from(0x1e00_0000 + number).into(),
            port: 143,
            class: ENCRYPTION,
        };
        let mut too_many = Tables::default();
        too_many.add_services(vec![], (0..ROOM).map(destination).collect());
        let refused = ipsec.apply(&too_many).unwrap_err().to_string();
        assert!(refused.contains("name fewer"), "{refused}");
        assert_eq!((ipsec.spd_entries().unwrap(), ipsec.wanted().clone()), before);
        // The refused demands are taken back, also those for which there was room; the former ones stand.
        shell(FLUSH);
        let mut far = Actor::peer();
        far.run("l = tcp(); l.bind(('', 143)); l.listen(); m = tcp(); m.bind(('', 144)); m.listen()");
        let mut near = Actor::other();
        let connect = |port: u16| format!("t = tcp(); t.connect(('{B}', {port}))");
        assert_eq!(near.in_vain(&connect(143)), libc::ETIMEDOUT);
        assert_eq!(near.errno(&connect(144)), 0);
    }

    fn a_demand_that_gives_way_to_another_is_one(world) {
        if let Err(reason) = Ipsec::probe_services() {
            println!("skipped: {reason}");
            return;
        }
        let settings = Settings { pins: Some("/mnt/bpf/usher".into()), ..settings(world) };
        let mut far = Actor::peer();
        far.run("for port in (143, 144): l = tcp(); l.bind(('', port)); l.listen(); globals()[f'l{port}'] = l");
        far.run("seen = capture('cable')");
        Ipsec::open(&settings).unwrap().apply(&reached()).unwrap();
        let mut next = reached();
        for destination in &mut next.destinations {
            destination.class = AUTHENTICATION;
        }
        // The next policy demands another class, and does not come in force.
        let mut ipsec = Ipsec::open(&settings).unwrap();
        Actor::other().run("freeze('/mnt/bpf/usher/state')");
        ipsec.apply(&next).unwrap_err();
        shell(FLUSH);
        let mut near = Actor::other();
        let connect = |port: u16| format!("t = tcp(); t.connect(('{B}', {port}))");
        assert_eq!(near.in_vain(&connect(143)), libc::ETIMEDOUT);
        assert_eq!(far.run("r = protocols(seen)"), "{}");
        assert_eq!(near.errno(&connect(144)), 0);
    }
}
