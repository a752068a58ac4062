//! While policies change, no call fails that both policies permit, and nothing leaves in the clear that must
//! not.

use usher_ipsec::Watcher;
use usher_protection::Tables;

use super::*;

/// The policy of this number. Host B is protected by one class or the other, its second address is
/// trusted, and another network makes the rules different.
fn policy(number: usize) -> Tables {
    let class = [ENCRYPTION, AUTHENTICATION][number % 2];
    let other = ["10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16"][number % 3];
    tables(&[(
        GOVERNED,
        vec![
            ("10.1.0.0/24", mandatory(class)),
            ("10.1.0.3/32", To::Trusted),
            ("fd01::/64", mandatory(class)),
            ("fd01::3/128", To::Trusted),
            (other, To::Trusted),
        ],
    )])
}

/// Attempts that all policies permit, and one that none permits.
const ATTEMPTS: &str = "
def send_once(family, to):
    with udp(family) as fresh: fresh.sendto(b'x', (to, 9))
def connect_once(to):
    with tcp() as fresh:
        fresh.setsockopt(1, 13, struct.pack('ii', 1, 0))
        fresh.connect((to, 80))
def send_tcp(of):
    try: of.send(b'x')
    except BlockingIOError: pass
# Packets that wait for an SA fill their socket's send buffer, so others have sockets of their own.
u, v, waiting, waiting6 = udp(), udp(6), udp(), udp(6)
for each in u, v, waiting, waiting6: each.setblocking(0)
counts = keep_trying({
    'trusted': lambda: u.sendto(b'x', ('10.1.0.3', 9)),
    'trusted6': lambda: v.sendto(b'x', ('fd01::3', 9)),
    'mapped': lambda: v.sendto(b'x', ('::ffff:10.1.0.3', 9)),
    'fresh': lambda: send_once(4, '10.1.0.3'),
    'fresh6': lambda: send_once(6, 'fd01::3'),
    'connect': lambda: connect_once('10.1.0.3'),
    'older': lambda: send_tcp(older),
    'older_protected': lambda: send_tcp(older_protected),
    'protected': lambda: waiting.sendto(b'x', ('10.1.0.2', 9)),
    'protected6': lambda: waiting6.sendto(b'x', ('fd01::2', 9)),
    'untrusted': lambda: u.sendto(b'x', ('10.9.0.1', 9)),
})";

tests! {
    // Threat model: P45
    fn no_permitted_call_fails_while_policies_change(world) {
        let (mut governed, mut peer, mut at_b) = (Actor::governed(), Actor::peer(), Actor::peer());
        peer.run("l = tcp(6); l.bind(('', 80)); l.listen(4096); l.settimeout(0.1); kept = []");
        for (name, to) in [("older", "10.1.0.3"), ("older_protected", "10.1.0.2")] {
            governed.run(&format!("{name} = tcp(); {name}.connect(('{to}', 80)); {name}.setblocking(0)"));
            peer.run("kept.append(l.accept()[0])");
        }
        peer.begin("while not is_over():\n    try: l.accept()[0].close()\n    except TimeoutError: pass");
        let mut ipsec = open(world);
        sees_calls(&ipsec);
        // Without somebody who makes SAs, a packet that needs one is refused.
        let _watcher = Watcher::open().unwrap();
        ipsec.apply(&policy(0)).unwrap();
        at_b.begin("counts = destinations(capture('cable'))");
        governed.begin(ATTEMPTS.trim());
        for number in 1..=if is_emulated() { 10 } else { 50 } {
            ipsec.apply(&policy(number)).unwrap();
            // Older connections, marked anew.
            ipsec.adopt().unwrap();
        }
        Actor::other().run("stop()");
        assert_eq!((governed.end(), peer.end(), at_b.end()), (0, 0, 0));
        let outcomes = governed.run("r = counts");
        for (name, outcome) in governed.outcomes() {
            match name.as_str() {
                "untrusted" => assert_eq!(outcome, [EPERM], "{outcomes}"),
                // EAGAIN: the packets that wait for an SA fill the send buffer.
                "protected" | "protected6" => {
                    assert!(outcome.iter().all(|one| [0, libc::EAGAIN].contains(one)), "{outcomes}");
                }
                _ => assert_eq!(outcome, [0], "{name}: {outcomes}"),
            }
        }
        let seen = at_b.run("r = counts");
        for (to, is_seen) in [("10.1.0.3", true), ("fd01::3", true), ("10.1.0.2", false), ("fd01::2", false)] {
            assert_eq!(seen.contains(&format!("'{to}'")), is_seen, "{seen}");
        }
    }

    // Threat model: P45
    fn the_first_datagram_after_a_change_does_not_fail(world) {
        let mut ipsec = open(world);
        let (mut governed, mut peer) = (Actor::governed(), Actor::peer());
        peer.run("u = udp(6); u.bind(('', 9))");
        let networks = |second: To| vec![
            ("10.1.0.2/32", To::Trusted), ("fd01::2/128", To::Trusted), ("10.1.0.3/32", second),
        ];
        ipsec.apply(&tables(&[(GOVERNED, networks(To::Untrusted))])).unwrap();
        governed.run("kept = [udp(), udp(), udp(), udp(6), udp(6)]");
        let mut send = |socket: usize, to: &str| {
            governed.errno(&format!("kept[{socket}].sendto(b'{socket}', ('{to}', 9))"))
        };
        assert_eq!((send(0, "10.1.0.2"), send(1, "10.1.0.3")), (0, EPERM));
        assert_eq!(peer.run("r = u.recv(9)"), "b'0'");
        ipsec.apply(&tables(&[(GOVERNED, networks(To::Trusted))])).unwrap();
        ipsec.adopt().unwrap();
        for (socket, to) in [(0, "10.1.0.2"), (1, "10.1.0.3"), (3, "::ffff:10.1.0.3"), (4, "fd01::2")] {
            assert_eq!(send(socket, to), 0, "{to}");
            assert_eq!(peer.run("r = u.recv(9)"), format!("b'{socket}'"), "{to}");
        }
        // The twin: what the policy in force does not permit.
        assert_eq!(send(2, "10.9.0.1"), EPERM);
        // A program that no block has any more.
        ipsec.apply(&tables(&[("/no/program", vec![])])).unwrap();
        ipsec.adopt().unwrap();
        assert_eq!(send(2, "10.1.0.2"), 0);
        assert_eq!(peer.run("r = u.recv(9)"), "b'2'");
    }

    fn entries_of_former_rules_stay_as_long_as_their_marks(world) {
        let mut ipsec = open(world);
        let mut governed = Actor::governed();
        ipsec.apply(&policy(0)).unwrap();
        governed.run("u = udp()");
        let former = governed.number("mark(u)");
        let carries = |ipsec: &mut usher_ipsec::Ipsec| {
            ipsec.adopt().unwrap();
            let entries = ipsec.spd_entries().unwrap();
            assert_eq!(&entries, ipsec.wanted());
            assert_eq!(ipsec.put_back().unwrap(), 0);
            let bits = MarkMask::default().signature_bits();
            entries.keys().any(|one| one.mark_bits == bits && one.mark == former & bits)
        };
        ipsec.apply(&policy(1)).unwrap();
        for _ in 0..3 {
            assert!(carries(&mut ipsec));
        }
        // At its next call the socket gets another mark.
        governed.run("u.sendto(b'x', ('10.1.0.3', 9))");
        assert_ne!(governed.number("mark(u)"), former);
        assert!(carries(&mut ipsec), "one listing may have missed it");
        assert!(!carries(&mut ipsec));
        // No other rules get the number of a mark that is carried.
        let marks = |governed: &mut Actor| governed.number("mark(udp())");
        let carried = marks(&mut governed);
        for number in 2..9 {
            ipsec.apply(&policy(number)).unwrap();
            assert_ne!(marks(&mut governed) & !DISCARD, carried & !DISCARD, "{number}");
        }
    }
}
