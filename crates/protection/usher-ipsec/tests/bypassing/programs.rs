//! Other ways to run, to make a socket, and to mark it.

use super::*;

tests! {
    // Threat model: P34
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

    // Threat model: P34
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

    // Threat model: P34
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

    // Threat model: P40
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

    // Threat model: P34
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

    // Threat model: P34
    fn another_network_namespace_is_no_way_out(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("s = udp(); s.bind(('10.1.0.2', 9)); t = udp(); t.bind(('10.1.0.3', 9))");
        for actor in [&mut governed, &mut other] {
            // Host B's own namespace: there are no entries of ours; its cable leads to host A.
            actor.run("import ctypes; f = os.open('/run/netns/b', 0); r = ctypes.CDLL(None).setns(f, 0x40000000)");
        }
        // From a namespace without entries of ours, a governed program reaches no peer that demands
        // protection.
        assert_eq!(governed.errno("udp().sendto(b'x', ('10.1.0.1', 9))"), EPERM);
        assert_eq!(other.errno("udp().sendto(b'x', ('10.1.0.1', 9))"), 0);
    }

    // Threat model: P34
    fn io_uring_is_governed_as_well(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        for actor in [&mut governed, &mut other] {
            actor.run(include_str!("../world/ring.py"));
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

    // Threat model: P18
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
}
