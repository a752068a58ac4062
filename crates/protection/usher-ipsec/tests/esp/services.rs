//! Services that are reached over protected connections only.

use super::*;

/// Whether this kernel has ESP, and accepts the programs that drop plaintext of services. Prints the
/// reason if not.
fn can_protect_services() -> bool {
    if let Err(reason) = Ipsec::probe_services() {
        println!("skipped: {reason}");
        return false;
    }
    has_esp()
}

tests! {
    // Threat model: P9
    fn a_flushed_spd_lets_no_service_out_in_the_clear(world) {
        if !can_protect_services() {
            return;
        }
        add_sas();
        let destination = |peer: &str| Destination { peer: peer.parse().unwrap(), port: 143, class: ENCRYPTION };
        let (mut reached, mut served) = (tables(&[]), tables(&[]));
        reached.add_services(vec![], vec![destination(B), destination(B6)]);
        served.add_services(vec![ProtectedService { port: 143, classes: [ENCRYPTION].into() }], vec![]);
        let [mut of_a, mut of_b] = [open(world), open_at_b(world)];
        of_a.apply(&reached).unwrap();
        in_b(|| of_b.apply(&served).unwrap());
        let (mut client, mut server) = (Actor::other(), Actor::peer());
        let (mut at_a, mut at_b) = (Actor::other(), Actor::peer());
        for at in [&mut at_a, &mut at_b] {
            at.run("seen = capture('cable')");
        }
        server.run("l = tcp(6); l.bind(('', 143)); l.listen()");
        for (family, to) in [(4, B), (6, B6)] {
            client.run(&format!("s = tcp({family}); s.connect(('{to}', 143)); s.setblocking(0)"));
            server.run("s, _ = l.accept(); s.setblocking(0)");
            let kept = [of_a.service_counters(), of_b.service_counters()].map(|one| one.unwrap().service_kept);
            for actor in [&mut client, &mut server] {
                actor.begin("while not os.path.exists('/mnt/end'):
 try: s.send(b'x'); s.recv(999)
 except OSError: pass
 time.sleep(0.001)");
            }
            for _ in 0..3 {
                run("ip", &["xfrm", "policy", "flush"]);
                run("ip", &["-n", "b", "xfrm", "policy", "flush"]);
                eventually("both would send in the clear", || {
                    of_a.service_counters().unwrap().service_kept > kept[0]
                        && of_b.service_counters().unwrap().service_kept > kept[1]
                });
                of_a.put_back().unwrap();
                of_b.put_back().unwrap();
            }
            std::fs::write("/mnt/end", "").unwrap();
            assert_eq!((client.end(), server.end()), (0, 0));
            std::fs::remove_file("/mnt/end").unwrap();
            // The connection goes on, and nothing was in the clear.
            client.run("s.setblocking(1); s.settimeout(60); s.sendall(b'end')");
            server.run("s.setblocking(1); s.settimeout(60); g = b''\nwhile not g.endswith(b'end'): g += s.recv(9999)");
            for (at, spi) in [(&mut at_a, ENCRYPTED[1]), (&mut at_b, ENCRYPTED[0])] {
                assert_eq!(at.run("r = list(protocols(seen))"), format!("[{spi}]"), "{to}");
            }
        }
        // The twin: another port.
        server.run("l = tcp(6); l.bind(('', 144)); l.listen()");
        client.run(&format!("s = tcp(); s.connect(('{B}', 144))"));
        assert_eq!(at_b.run(&format!("r = {TCP} in protocols(seen)")), "True");
    }

    /// Somebody else's entry protects by an SA of another class.
    // Threat model: P54
    fn a_service_is_not_reached_by_another_class(world) {
        if !can_protect_services() {
            return;
        }
        add_sas();
        let mut tables = Tables::default();
        let destination = Destination { peer: B.parse().unwrap(), port: 143, class: ENCRYPTION };
        tables.add_services(vec![], vec![destination]);
        let mut ipsec = open(world);
        ipsec.apply(&tables).unwrap();
        let (mut client, mut at_b) = (Actor::other(), Actor::peer());
        at_b.run("seen = capture('cable')");
        let arrived = "r = list(protocols(seen))";
        for class in [AUTHENTICATION, ENCRYPTION] {
            run("ip", &["xfrm", "policy", "update", "dst", B, "dir", "out", "priority", "1", "tmpl", "src", "10.1.0.1", "dst", B,
                "proto", "esp", "mode", "transport", "reqid", &usher_ipsec::reqid(class).to_string()]);
            client.in_vain(&format!("s = tcp(); s.connect(('{B}', 143))"));
            if class == AUTHENTICATION {
                assert_eq!(at_b.run(arrived), "[]");
            } else {
                eventually("it arrives", || at_b.run(arrived) == format!("[{}]", ENCRYPTED[0]));
            }
        }
        assert!(ipsec.service_counters().unwrap().service_kept > 0);
    }
}
