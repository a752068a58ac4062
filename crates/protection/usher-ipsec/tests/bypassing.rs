//! Attempts of programs on a governed host to send or receive past their policy. Each way
//! is open to a program that is not governed, or to a peer that is trusted. Without SAs.

#[macro_use]
mod world;

use usher_protection::Level;
use world::*;

/// The packets that have arrived at host B since the last look.
fn captured(peer: &mut Actor) -> String {
    peer.run("r = protocols(seen)")
}

/// Waits until a packet has arrived at host B.
fn arrives(what: &str, peer: &mut Actor) -> String {
    let mut seen = String::from("{}");
    eventually(what, || {
        seen = captured(peer);
        seen != "{}"
    });
    seen
}

/// The same act: of the governed program nothing leaves, of another program it does.
fn only_others(what: &str, acts: &[&str], [governed, other, peer]: [&mut Actor; 3]) {
    for act in acts {
        governed.errno(act);
    }
    // It would come before this.
    governed.run("t = udp(); t.sendto(b'mark', ('10.1.0.3', 9))");
    assert_eq!(arrives(what, peer), "{17: 1}", "{what}: a governed program");
    for act in acts {
        other.errno(act);
    }
    let seen = arrives(what, peer);
    assert!(seen != "{}", "{what}: another program");
}

tests! {
    fn a_raw_socket_sends_no_plaintext(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        let header = "ends = socket.inet_aton('10.1.0.1') + socket.inet_aton('10.1.0.2')";
        for (what, act) in [
            ("a raw socket of UDP", "s = socket.socket(2, 3, 17); s.sendto(bytes(8), ('10.1.0.2', 0))".to_owned()),
            ("a raw socket of TCP", "s = socket.socket(2, 3, 6); s.sendto(bytes(20), ('10.1.0.2', 0))".to_owned()),
            ("a raw socket of ICMP", "s = socket.socket(2, 3, 1); s.sendto(b'\\x08' + bytes(7), ('10.1.0.2', 0))".to_owned()),
            ("a raw socket of IPv6", "s = socket.socket(10, 3, 17); s.sendto(bytes(8), ('fd01::2', 0))".to_owned()),
            ("a raw socket with its own header", format!(
                "s = socket.socket(2, 3, 255); {header}; s.sendto(struct.pack('!BBHHHBBH', 0x45, 0, 28, 1, 0, 64, 17, 0) + ends + bytes(8), ('10.1.0.2', 0))"
            )),
            // To a trusted peer's next hop, with the other in the header.
            ("a raw socket that lies about its peer", format!(
                "s = socket.socket(2, 3, 255); {header}; s.sendto(struct.pack('!BBHHHBBH', 0x45, 0, 28, 1, 0, 64, 17, 0) + ends + bytes(8), ('10.1.0.3', 0))"
            )),
            // Its "ports" are bytes of its own choice.
            ("a fragment after the first", format!(
                "s = socket.socket(2, 3, 255); {header}; s.sendto(struct.pack('!BBHHHBBH', 0x45, 0, 28, 1, 1, 64, 17, 0) + ends + bytes(8), ('10.1.0.2', 0))"
            )),
        ] {
            only_others(what, &[&act], [&mut governed, &mut other, &mut peer]);
        }
    }

    fn a_fragment_does_not_choose_its_ports(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![
            ("10.1.0.0/24", To::Protected(vec![
                (0, 53, AUTHENTICATION, Level::Optional),
                (0, 0, ENCRYPTION, Level::Mandatory),
            ])),
            ("10.1.0.3/32", To::Trusted),
        ])])).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // The bytes in the place of ports are data of the fragment.
        let fragment = "
s = socket.socket(2, 3, 255)
ends = socket.inet_aton('10.1.0.1') + socket.inet_aton('10.1.0.2')
header = struct.pack('!BBHHHBBH', 0x45, 0, 28, 1, 1, 64, 17, 0) + ends
s.sendto(header + struct.pack('!HHHH', 5, 53, 0, 0), ('10.1.0.2', 0))";
        only_others("a fragment", &[fragment], [&mut governed, &mut other, &mut peer]);
        // A whole datagram to that port may be plain.
        governed.run("udp().sendto(b'x', ('10.1.0.2', 53))");
        assert_eq!(arrives("the optional port", &mut peer), "{17: 1}");
    }

    fn a_connected_raw_socket_is_judged_packet_by_packet(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![
            ("10.1.0.0/24", To::Protected(vec![
                (0, 53, AUTHENTICATION, Level::Optional),
                (0, 0, ENCRYPTION, Level::Mandatory),
            ])),
            ("10.1.0.3/32", To::Trusted),
        ])])).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // The socket has the mark of a port that may be plain. The program writes the ports itself.
        let connect = "s = socket.socket(2, 3, 6); s.connect(('10.1.0.2', 53))";
        let segment = |port: u16| format!("s.send(struct.pack('!HH', 5, {port}) + bytes(16))");
        for actor in [&mut governed, &mut other] {
            actor.run(connect);
            actor.run(&segment(53));
            assert_eq!(arrives("the optional port", &mut peer), "{6: 1}");
        }
        only_others("another port", &[&segment(9)], [&mut governed, &mut other, &mut peer]);
    }

    fn a_way_by_a_trusted_address_is_refused(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // By the trusted address to the other.
        let way = |kind: u32| format!(
            "s = udp(); s.setsockopt(0, 4, bytes([{kind}, 7, 4]) + socket.inet_aton('10.1.0.3') + b'\\0'); s.sendto(b'x', ('10.1.0.2', 9))"
        );
        for (what, act) in [("a loose way", way(131)), ("a strict way", way(137))] {
            only_others(what, &[&act], [&mut governed, &mut other, &mut peer]);
        }
        assert!(ipsec.counters().unwrap().kept_unreadable >= 2);
        // After another option.
        let later = "s = udp(); s.setsockopt(0, 4, bytes([1, 68, 8, 5, 0, 0, 0, 0, 0, 131, 7, 4]) + socket.inet_aton('10.1.0.3') + b'\\0'); s.sendto(b'x', ('10.1.0.2', 9))";
        only_others("a way after a timestamp", &[later], [&mut governed, &mut other, &mut peer]);
        // Other options are no way: an alert for routers to the trusted address.
        governed.run("s = udp(); s.setsockopt(0, 4, bytes([1, 148, 4, 0, 0, 0, 0, 0])); s.sendto(b'x', ('10.1.0.3', 9))");
        assert_eq!(arrives("an alert", &mut peer), "{17: 1}");
        // IPv6: type 2, one address left.
        let way = "s = udp(6); s.setsockopt(41, 57, bytes([0, 2, 2, 1, 0, 0, 0, 0]) + socket.inet_pton(10, 'fd01::3')); s.sendto(b'x', ('fd01::2', 9))";
        if other.errno(way) == 0 {
            captured(&mut peer);
            only_others("a routing header", &[way], [&mut governed, &mut other, &mut peer]);
        }
    }

    fn a_datagram_that_is_kept_back_goes_to_its_first_peer(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        for actor in [&mut governed, &mut other] {
            actor.run("import ctypes; libc = ctypes.CDLL(None)");
        }
        for (family, trusted, to) in [(4, "10.1.0.3", "10.1.0.2"), (6, "fd01::3", "fd01::2")] {
            // Begun with the mark of the trusted peer; the port is given back before the end.
            let act = format!("
s = udp({family})
s.connect(('{trusted}', 9))
try: s.sendto(b'a', 0x8000, ('{to}', 9))
except OSError: pass
libc.connect(s.fileno(), bytes(16), 16)
s.send(b'b')");
            only_others(to, &[&act], [&mut governed, &mut other, &mut peer]);
        }
    }

    fn a_mark_is_refused_however_it_is_set(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        for actor in [&mut governed, &mut other] {
            actor.run("s = udp()");
        }
        let mark = |mark: u32| format!("s.setsockopt(1, SO_MARK, {mark})");
        // Our bits with others, all bits, another application's signature, and a duplicate.
        for value in [BYPASS | 1, u32::MAX, 0x0200_0000] {
            let set = format!("s.setsockopt(1, SO_MARK, struct.pack('I', {value:#x}))");
            assert_eq!(governed.errno(&set), EPERM, "{value:#x}");
            assert_eq!(other.errno(&set), 0, "{value:#x}");
        }
        let set = format!("import os; d = socket.socket(fileno=os.dup(s.fileno())); d{}", &mark(BYPASS)[1..]);
        assert_eq!(governed.errno(&set), EPERM);
        assert_eq!(other.errno(&set), 0);
        // In a control message: nothing leaves.
        let act = "s = udp(); s.sendmsg([b'x'], [(1, SO_MARK, struct.pack('I', 0x100000))], 0, ('10.1.0.2', 9))";
        only_others("a control message", &[act], [&mut governed, &mut other, &mut peer]);
    }

    fn children_and_threads_are_governed_as_well(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        let send = "udp().sendto(b'x', ('10.1.0.2', 9))";
        let quietly = format!("    try: {send}\n    except OSError: pass");
        for (what, act) in [
            ("a child", format!("p = os.fork()\nif not p:\n{quietly}\n    os._exit(0)\nos.waitpid(p, 0)")),
            ("a grandchild whose parent ends", format!(
                "a, b = os.pipe()\np = os.fork()\nif not p:\n    if not os.fork():\n{}\n        os.write(b, b'x')\n    os._exit(0)\nos.waitpid(p, 0); os.read(a, 1)",
                quietly.replace("    ", "        ")
            )),
            ("a thread", format!(
                "import threading\ndef f():\n{quietly}\nt = threading.Thread(target=f); t.start(); t.join()"
            )),
            ("a socket of the parent", format!("s = udp()\np = os.fork()\nif not p:\n{}\n    os._exit(0)\nos.waitpid(p, 0)", quietly.replace("udp()", "s"))),
        ] {
            only_others(what, &[&act], [&mut governed, &mut other, &mut peer]);
        }
    }

    fn a_program_that_is_executed_is_governed_by_its_own_file(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let by = |program: &str| format!(
            "import subprocess; r = subprocess.run(['{program}', '-c', 'import socket; print(socket.socket().getsockopt(1, 36))'], capture_output=True, env={{'PYTHONHOME': '/usr'}}).stdout.decode().strip()"
        );
        for actor in [&mut governed, &mut other] {
            assert_eq!(actor.run(&by(OTHER)), "'0'");
            assert_ne!(actor.run(&by(GOVERNED)), "'0'");
        }
    }

    fn no_root_of_its_own_hides_a_program(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let mut other = Actor::other();
        let print = "import socket; print(socket.socket().getsockopt(1, 36))";
        // The same file under another name, behind other mounts; another file under its name.
        std::fs::create_dir("/mnt/other").unwrap();
        std::fs::copy(GOVERNED, "/mnt/copy").unwrap();
        for (what, command, is_governed) in [
            ("a mount namespace", format!("mount --bind {GOVERNED} /mnt/copy && exec /mnt/copy -c '{print}'"), true),
            ("another file mounted in its place", format!("mount --bind {OTHER} {GOVERNED} && exec {GOVERNED} -c '{print}'"), false),
            ("another root", format!("mount --rbind / /mnt/other && exec chroot /mnt/other {GOVERNED} -c '{print}'"), true),
            ("a hard link", format!("ln -f {GOVERNED} /mnt/hard && exec /mnt/hard -c '{print}'"), true),
            ("an open descriptor", format!("exec 7<{GOVERNED}; exec /proc/self/fd/7 -c '{print}'"), true),
        ] {
            let run = format!(
                "import subprocess; r = subprocess.run(['unshare', '--mount', 'sh', '-c', {command:?}], capture_output=True, env={{'PYTHONHOME': '/usr', 'PATH': os.environ['PATH']}}); r = r.stdout.decode().strip() or r.stderr.decode()"
            );
            let mark = other.run(&run);
            let mark: u32 = mark.trim_matches('\'').parse().unwrap_or_else(|_| panic!("{what}: {mark}"));
            assert_eq!(mark != 0, is_governed, "{what}: {mark:#x}");
        }
    }

    fn a_script_is_told_apart_by_an_interpreter_of_its_own(world) {
        // Without LSM programs, which tell scripts apart.
        let settings = usher_ipsec::Settings { lsm: false, ..settings(world) };
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        let only = |program: &str| tables(&[(program, vec![("10.1.0.0/24", mandatory(ENCRYPTION))])]);
        std::fs::copy(GOVERNED, "/mnt/of_its_own").unwrap();
        let print = "import socket; print(socket.socket().getsockopt(1, 36))";
        for (script, interpreter) in [("/mnt/one", OTHER), ("/mnt/two", OTHER), ("/mnt/three", "/mnt/of_its_own")] {
            std::fs::write(script, format!("#!{interpreter}\n{print}\n")).unwrap();
            run("chmod", &["755", script]);
        }
        let mark = |script: &str| {
            let output = std::process::Command::new(script).env("PYTHONHOME", "/usr").output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse::<u32>().unwrap()
        };
        // The program says so; it does not govern all scripts instead.
        let applied = ipsec.apply(&only("/mnt/one")).unwrap();
        let refused: Vec<_> = applied.refused.iter().map(|one| &one.reason).collect();
        assert_eq!(refused, [&usher_ipsec::Reason::Script]);
        assert_eq!(["/mnt/one", "/mnt/two", "/mnt/three"].map(mark), [0, 0, 0]);
        let applied = ipsec.apply(&only("/mnt/of_its_own")).unwrap();
        assert_eq!(applied.refused, []);
        assert_eq!(["/mnt/one", "/mnt/two"].map(mark), [0, 0]);
        assert_ne!(mark("/mnt/three"), 0);
    }

    fn a_process_in_a_cgroup_below_is_governed(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let mut governed = Actor::governed();
        let below = world.cgroup.join("container/inner");
        std::fs::create_dir_all(&below).unwrap();
        governed.run(&format!("open('{}/cgroup.procs', 'w').write(str(os.getpid()))", below.display()));
        assert_ne!(governed.number("mark(udp())"), 0);
        assert_eq!(governed.errno("udp().connect(('10.9.0.1', 9))"), EPERM);
        assert_eq!(governed.errno("udp().connect(('10.1.0.3', 9))"), 0);
        let own = world.cgroup.join("own");
        governed.run(&format!("open('{}/cgroup.procs', 'w').write(str(os.getpid()))", own.display()));
    }

    fn another_network_namespace_is_no_way_out(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("s = udp(); s.bind(('10.1.0.2', 9)); s.settimeout(2); t = udp(); t.bind(('10.1.0.3', 9)); t.settimeout(2)");
        for actor in [&mut governed, &mut other] {
            // Host B's own namespace: there are no entries of ours; its cable leads to host A.
            actor.run("import ctypes; f = os.open('/run/netns/b', 0); r = ctypes.CDLL(None).setns(f, 0x40000000)");
        }
        // From a namespace without entries of ours, a governed program reaches no peer that demands
        // protection.
        assert_eq!(governed.errno("udp().sendto(b'x', ('10.1.0.1', 9))"), EPERM);
        assert_eq!(other.errno("udp().sendto(b'x', ('10.1.0.1', 9))"), 0);
    }

    fn sockets_that_share_a_port_keep_their_programs(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        for actor in [&mut governed, &mut other] {
            actor.run("s = udp(); s.setsockopt(1, 15, 1); s.bind(('', 99)); s.settimeout(0.2)");
        }
        peer.run("a = [udp() for _ in range(64)]\nfor s in a: s.bind(('10.1.0.2', 0)); s.sendto(b'x', ('10.1.0.1', 99))");
        // The kernel spreads them over both sockets by their ports.
        let count = "r = 0\ntry:\n    while s.recv(9): r += 1\nexcept OSError: pass";
        let arrived: u32 = other.run(count).parse().unwrap();
        assert_eq!(governed.run(count), "0");
        let refused = ipsec.counters().unwrap().refused_plain;
        assert!(arrived > 0 && refused > 0 && u64::from(arrived) + refused == 64, "{arrived}, {refused}");
    }

    fn bits_of_others_in_the_mark_stay(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        // Bits outside the mask are the administrator's, with and without a connection.
        for actor in [&mut governed, &mut other] {
            actor.run("s = udp(); s.setsockopt(1, SO_MARK, mark(s) & 0xfff00000 | 0x4242); s.connect(('10.1.0.3', 9))");
        }
        assert_eq!(governed.number("mark(s)"), BYPASS | 0x4242);
        assert_eq!(other.number("mark(s)"), 0x4242);
    }

    fn io_uring_is_governed_as_well(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        for actor in [&mut governed, &mut other] {
            actor.run(include_str!("world/ring.py"));
        }
        if other.run("r = ring_works()") != "True" {
            eprintln!("skipped: this kernel has no io_uring for this test");
            return;
        }
        assert_ne!(governed.number("mark(ring_socket())"), 0);
        assert_eq!(other.number("mark(ring_socket())"), 0);
        only_others("a send by io_uring", &["s = udp(); r = ring_send(s, ('10.1.0.2', 9))"],
            [&mut governed, &mut other, &mut peer]);
        assert_eq!(governed.run("s = udp(); r = ring_connect(s, ('10.9.0.1', 9))"), (-EPERM).to_string());
        assert_eq!(other.run("s = udp(); r = ring_connect(s, ('10.1.0.2', 9))"), "0");
    }

    fn a_peer_that_another_program_rewrites_decides(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // A program of the control group, after ours: the trusted address becomes the other.
        other.run(include_str!("world/rewriting.py"));
        other.run(&format!("rewrite('{}', '10.1.0.2')", world.cgroup.display()));
        let connect = "s = tcp(); s.setblocking(0); s.connect_ex(('10.1.0.3', 80))";
        governed.errno(connect);
        assert_eq!(governed.run("r = s.getsockopt(1, 36) >> 20"), "3", "encryption, mandatory");
        governed.errno("s = udp(); s.connect(('10.1.0.3', 80)); s.send(b'x')");
        governed.run("udp().sendto(b'mark', ('10.1.0.3', 9))");
        assert_eq!(arrives("a datagram to the trusted address", &mut peer), "{17: 1}");
        other.errno(connect);
        assert_eq!(arrives("another program's SYN", &mut peer), "{6: 1}");
    }

    fn a_host_reaches_itself_without_protection(world) {
        let mut ipsec = open(world);
        let all = |to: To| tables(&[(GOVERNED, vec![("0.0.0.0/0", to.clone()), ("::/0", to)])]);
        for (what, policy) in [("discard", secure()), ("mandatory", all(mandatory(ENCRYPTION)))] {
            ipsec.apply(&policy).unwrap();
            let (mut governed, mut other) = (Actor::governed(), Actor::other());
            for (family, address) in [(4, "127.0.0.1"), (4, "10.1.0.1"), (6, "::1")] {
                let to = format!("('{address}', 99)");
                other.run(&format!("u = udp({family}); u.bind({to}); l = tcp({family}); l.setsockopt(1, 2, 1); l.bind({to}); l.listen()"));
                governed.run(&format!("s = udp({family}); s.sendto(b'question', {to})"));
                other.run("q, back = u.recvfrom(9); u.sendto(b'answer', back)");
                assert_eq!(governed.run("r = s.recv(9)"), "b'answer'", "{what} {address}");
                governed.run(&format!("s = udp({family}); s.connect({to}); s.send(b'question')"));
                other.run("q, back = u.recvfrom(9); u.sendto(b'answer', back)");
                assert_eq!(governed.run("r = s.recv(9)"), "b'answer'", "{what} {address}");
                governed.run(&format!("s = tcp({family}); s.connect({to}); s.send(b'question')"));
                other.run("c, _ = l.accept(); c.recv(9); c.send(b'answer'); u.close(); l.close(); c.close()");
                assert_eq!(governed.run("r = s.recv(9)"), "b'answer'", "{what} {address}");
            }
        }
    }
}
