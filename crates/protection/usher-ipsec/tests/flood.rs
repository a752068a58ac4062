//! Floods of a protected port: SYNs in the clear from invented addresses and, where the kernel has
//! ESP, packets that are replayed, forged, or of no SA. Protected connections go on meanwhile.

#[macro_use]
mod world;

use world::*;

/// The packets of each kind: enough to fill any queue of a listener many times over.
const FLOOD: u32 = 20_000;

/// The counter of the kernel's network statistics, in host A's namespace.
fn statistic(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/net/{file}")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.trim().parse().unwrap()
}

/// The connections to a port that are half open on host A.
fn half_open(port: u16) -> usize {
    let listed = run(
        "ss",
        &[
            "-Htn",
            "state",
            "syn-recv",
            "sport",
            "=",
            &format!(":{port}"),
        ],
    );
    listed.lines().count()
}

tests! {
    // Threat model: P5
    fn a_flood_in_the_clear_reaches_no_queue(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![
            ("10.1.0.0/24", mandatory(ENCRYPTION)),
            ("10.1.0.3/32", To::Trusted),
            ("10.2.0.0/16", mandatory(ENCRYPTION)),
        ])])).unwrap();
        run("ip", &["route", "add", "10.2.0.0/16", "via", B]);
        // Without cookies a full queue shows.
        run("sysctl", &["-q", "-w", "net.ipv4.tcp_syncookies=0"]);
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        let mut attacker = Actor::peer();
        for (actor, port) in [(&mut governed, 80), (&mut other, 81)] {
            actor.run(&format!("l = tcp(); l.setsockopt(1, 2, 1); l.bind(('', {port})); l.listen(16)"));
        }
        attacker.run(include_str!("world/flooding.py"));
        peer.run("kept = []");
        let connect = |port: u16| format!(
            "s = tcp(); kept.append(s); s.bind(('10.1.0.3', 0)); s.connect(('10.1.0.1', {port}))"
        );
        attacker.begin(&format!("flood_syns('10.1.0.1', 80, {FLOOD})"));
        // The trusted address is served meanwhile.
        for _ in 0..20 {
            assert_eq!(peer.errno(&connect(80)), 0);
            governed.run("c, _ = l.accept(); c.send(b'x')");
            assert_eq!(peer.run("r = s.recv(9)"), "b'x'");
        }
        assert_eq!(attacker.end(), 0);
        eventually("all were dropped", || {
            ipsec.counters().unwrap().refused_plain >= u64::from(FLOOD)
        });
        assert_eq!(half_open(80), 0);
        // The same flood fills the queue of a program that is not governed.
        attacker.run(&format!("flood_syns('10.1.0.1', 81, {FLOOD})"));
        assert!(half_open(81) > 0);
    }

    // Threat model: P5
    fn a_flood_of_esp_reaches_no_queue(world) {
        if !has_esp() {
            return;
        }
        add_sas();
        let policy = tables(&[(GOVERNED, vec![("10.1.0.0/24", mandatory(ENCRYPTION))])]);
        let mut ipsec = [open(world), open_at_b(world)];
        for host in &mut ipsec {
            host.apply(&policy).unwrap();
        }
        let (mut a, mut b) = (Actor::governed(), Actor::governed_peer(world));
        let (mut attacker, mut at_a) = (Actor::peer(), Actor::other());
        attacker.run(include_str!("world/flooding.py"));
        at_a.run("import base64; seen = socket.socket(2, 3, 50); seen.settimeout(60)");
        a.run("l = tcp(); l.bind(('', 80)); l.listen()");
        b.run("s = tcp(); s.connect(('10.1.0.1', 80)); s.send(b'x')");
        a.run("c, _ = l.accept(); c.settimeout(60); r = c.recv(1)");
        // The packet of ESP that contains the SYN.
        let syn = at_a.run("r = base64.b64encode(seen.recv(9999)[20:]).decode()");
        let syn = syn.trim_matches('\'');
        let half = FLOOD / 10;
        for (kind, change, counter) in [
            ("of no SA", "packet[0] ^= 1", "XfrmInNoStates"),
            ("forged", "packet[-1] ^= 1; packet[4:8] = struct.pack('!I', 5000)", "XfrmInStateProtoError"),
            ("replayed", "pass", "XfrmInStateSeqError"),
        ] {
            let before = statistic("xfrm_stat", counter);
            attacker.begin(&format!(
                "import base64; packet = bytearray(base64.b64decode('{syn}')); {change}; flood_esp('10.1.0.2', '10.1.0.1', bytes(packet), {half})"
            ));
            for _ in 0..10 {
                b.run("s.send(b'question')");
                assert_eq!(a.run("r = c.recv(99)"), "b'question'", "{kind}");
                // A new one as well.
                b.run("t = tcp(); t.connect(('10.1.0.1', 80))");
                a.run("d, _ = l.accept(); d.close()");
            }
            assert_eq!(attacker.end(), 0);
            eventually(kind, || statistic("xfrm_stat", counter) >= before + u64::from(half));
            assert_eq!(half_open(80), 0, "{kind}");
        }
    }
}

/// An SA each way.
fn add_sas() {
    let mut sas = String::new();
    for (from, to, spi) in [("10.1.0.1", B, 0x1001), (B, "10.1.0.1", 0x1002)] {
        let sa = sa(ENCRYPTION, "rfc4106(gcm(aes))", [from, to], spi);
        sas += &format!("{} replay-window 32\n", sa.trim_end());
    }
    for host in [&[][..], &["-n", "b"]] {
        batch(host, &sas);
    }
}
