//! Scripts told apart, where the kernel runs LSM programs.

use std::process::Command;

use usher_ipsec::Ipsec;

use super::*;

const ONE: &str = "/mnt/one";
const TWO: &str = "/mnt/two";
const PYTHON: &str = "#!/usr/bin/python3";
/// Prints the mark of a new socket.
const PRINT: &str = "import socket; print(socket.socket().getsockopt(1, 36))";

/// Writes a script.
fn script(path: &str, first_line: &str, code: &str) {
    std::fs::write(path, format!("{first_line}\n{code}\n")).unwrap();
    run("chmod", &["755", path]);
}

/// Writes a script that does what a test says.
fn acting(path: &str, first_line: &str) {
    script(path, first_line, include_str!("../world/actor.py"));
}

/// A block for one script that encrypts, and one for another that trusts host B.
fn both() -> usher_protection::Tables {
    tables(&[
        (
            ONE,
            vec![
                ("10.1.0.0/24", mandatory(ENCRYPTION)),
                ("10.1.0.3/32", To::Trusted),
            ],
        ),
        (TWO, vec![("10.1.0.0/24", To::Trusted)]),
    ])
}

/// The mark of a socket that the command makes.
fn printed(command: &mut Command) -> u32 {
    let output = command.env("PYTHONHOME", "/usr").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("{command:?}: {text}{errors}"))
}

fn of(path: &str) -> u32 {
    printed(&mut Command::new(path))
}

/// The mark of a socket of the command that an actor runs; `how`: arguments of subprocess.run.
fn run_by(actor: &mut Actor, command: &[&str], how: &str) -> u32 {
    actor.number(&format!(
        "int(__import__('subprocess').run({command:?}, stdout=-1{how}).stdout)"
    ))
}

fn is_skipped(ipsec: &Ipsec) -> bool {
    let reason = ipsec.monitor().unseen_scripts();
    if let Some(reason) = reason {
        eprintln!("skipped: this kernel runs no LSM programs: {reason}");
    }
    reason.is_some()
}

/// The marks of the two blocks: both differ from none, and from each other.
fn marks() -> [u32; 2] {
    let found = [ONE, TWO].map(|path| Actor::at(path).number("mark(udp())"));
    assert!(
        found[0] != 0 && found[1] != 0 && found[0] != found[1],
        "{found:x?}"
    );
    found
}

tests! {
    // Threat model: P40
    fn scripts_of_one_interpreter_are_told_apart(world) {
        let mut ipsec = open(world);
        if is_skipped(&ipsec) {
            return;
        }
        for path in [ONE, TWO, "/mnt/three"] {
            acting(path, PYTHON);
        }
        let mut peer = Actor::peer();
        peer.run("u = udp(); u.bind(('10.1.0.2', 9)); l = tcp(); l.bind(('10.1.0.2', 80)); l.listen()");
        assert_eq!(ipsec.apply(&both()).unwrap().refused, []);
        marks();
        let (mut one, mut two, mut three) = (Actor::at(ONE), Actor::at(TWO), Actor::at("/mnt/three"));
        assert_eq!(three.number("mark(udp())"), 0);
        assert_eq!(Actor::other().number("mark(udp())"), 0);
        // An interpreter with a script as its argument executes no script.
        assert_eq!(run_by(&mut three, &[OTHER, "-c", PRINT], ""), 0);
        script("/mnt/print", PYTHON, PRINT);
        assert_eq!(run_by(&mut one, &[OTHER, "/mnt/print"], ""), 0);
        // A script's policy is that of its block.
        one.errno("u = udp(); u.sendto(b'forged', ('10.1.0.2', 9))");
        two.run("u = udp(); u.sendto(b'trusted', ('10.1.0.2', 9))");
        assert_eq!(peer.run("r = u.recv(9)"), "b'trusted'");
        three.run("udp().sendto(b'other', ('10.1.0.2', 9))");
        assert_eq!(peer.run("r = u.recv(9)"), "b'other'");
        assert_eq!(two.errno("udp().sendto(b'x', ('10.9.0.1', 9))"), EPERM);
        one.run("t = tcp(); t.setblocking(0); t.connect_ex(('10.1.0.2', 80))");
        assert_eq!(one.number("mark(t)"), mark(ENCRYPTION, usher_protection::Level::Mandatory));
        two.run("t = tcp(); t.connect(('10.1.0.2', 80))");
        assert_eq!(two.number("mark(t)"), BYPASS);
        let live = ipsec.sockets(0, 99).unwrap().sockets;
        let mut names: Vec<_> = live.iter().map(|one| one.program.as_ref().unwrap().to_string()).collect();
        names.sort();
        assert_eq!(names, [ONE, ONE, TWO, TWO]);
    }

    // Threat model: P40
    fn an_exec_ends_a_script_and_a_child_does_not(world) {
        let mut ipsec = open(world);
        if is_skipped(&ipsec) {
            return;
        }
        acting(ONE, PYTHON);
        script(TWO, PYTHON, PRINT);
        ipsec.apply(&both()).unwrap();
        let (mut one, mut other) = (Actor::at(ONE), Actor::other());
        let (of_one, of_two) = (one.number("mark(udp())"), of(TWO));
        assert!(of_one != 0 && of_two != 0 && of_one != of_two, "{of_one:x} {of_two:x}");
        let in_child = "a, b = os.pipe()\nif not os.fork():\n    os.write(b, str(mark(udp())).encode()); os._exit(0)\nos.wait(); r = int(os.read(a, 99)); os.close(a); os.close(b)";
        let in_thread = "import threading\nf = []\nt = threading.Thread(target=lambda: f.append(mark(udp()))); t.start(); t.join(); r = f[0]";
        for (actor, expected) in [(&mut one, of_one), (&mut other, 0)] {
            for act in [in_child, in_thread] {
                assert_eq!(actor.run(act), expected.to_string(), "{act}");
            }
            // By vfork, by fork, and in a thread.
            for how in ["", ", preexec_fn=lambda: None"] {
                assert_eq!(run_by(actor, &["/usr/bin/python3", "-c", PRINT], how), 0);
                assert_eq!(run_by(actor, &["/proc/self/exe", "-c", PRINT], how), 0);
                assert_eq!(run_by(actor, &[TWO], how), of_two);
            }
            let by_thread = format!("import threading\nif not os.fork():\n    os.dup2(os.open('/mnt/out', os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), 1); t = threading.Thread(target=lambda: os.execv('{TWO}', ['two'])); t.start(); t.join()\nos.wait(); r = int(open('/mnt/out').read())");
            assert_eq!(actor.run(&by_thread), of_two.to_string());
            // The parent is what it was.
            assert_eq!(actor.number("mark(udp())"), expected);
        }
    }

    // Threat model: P40
    fn an_exec_that_fails_changes_no_script(world) {
        let mut ipsec = open(world);
        if is_skipped(&ipsec) {
            return;
        }
        acting(ONE, PYTHON);
        script(TWO, "#!/mnt/nothing", "");
        ipsec.apply(&both()).unwrap();
        let (mut one, mut other) = (Actor::at(ONE), Actor::other());
        let of_one = one.number("mark(udp())");
        assert_ne!(of_one, 0);
        for (actor, expected) in [(&mut one, of_one), (&mut other, 0)] {
            assert_eq!(actor.errno(&format!("os.execv('{TWO}', ['two'])")), libc::ENOENT);
            assert_eq!(actor.number("mark(udp())"), expected);
            assert_eq!(run_by(actor, &[OTHER, "-c", PRINT], ""), 0);
            assert_eq!(actor.number("mark(udp())"), expected);
        }
        script(TWO, PYTHON, PRINT);
        let of_two = run_by(&mut other, &[TWO], "");
        assert!(of_two != 0 && of_two != of_one);
    }

    // Threat model: P40
    fn env_passes_a_script_on_to_one_program(world) {
        let mut ipsec = open(world);
        if is_skipped(&ipsec) {
            return;
        }
        acting(ONE, "#!/usr/bin/env /usr/bin/python3");
        acting(TWO, "#!/usr/bin/env -S /usr/bin/python3 -I");
        acting("/mnt/three", "#!/usr/bin/env /usr/bin/python3");
        ipsec.apply(&both()).unwrap();
        let mut one = Actor::at(ONE);
        let [of_one, of_two] = marks();
        assert_eq!(Actor::at("/mnt/three").number("mark(udp())"), 0);
        // A program that the script executes is not the script, and neither is one that it executes
        // by env.
        assert_eq!(run_by(&mut one, &[OTHER, "-c", PRINT], ""), 0);
        assert_eq!(run_by(&mut one, &["/usr/bin/env", OTHER, "-c", PRINT], ""), 0);
        assert_eq!(run_by(&mut one, &["/usr/bin/env", "-S", OTHER, "-c", PRINT], ""), 0);
        // A script of a block whose interpreter is a script, by env or not.
        script(TWO, PYTHON, PRINT);
        script("/mnt/outer", "#!/usr/bin/env /mnt/two", "");
        assert_eq!(of("/mnt/outer"), of_two);
        script("/mnt/outer", "#!/mnt/two", "");
        assert_eq!(of("/mnt/outer"), of_two);
        script(ONE, "#!/mnt/two", "");
        assert_eq!(of(ONE), of_one, "the first one that the policy names");
        script(ONE, "#!/usr/bin/env /mnt/two", "");
        assert_eq!(of(ONE), of_one);
    }

    // Threat model: P40
    fn no_name_hides_a_script(world) {
        let mut ipsec = open(world);
        if is_skipped(&ipsec) {
            return;
        }
        script(ONE, PYTHON, PRINT);
        script("/mnt/three", PYTHON, PRINT);
        script("/mnt/copy", PYTHON, PRINT);
        std::fs::create_dir("/mnt/other").unwrap();
        ipsec.apply(&both()).unwrap();
        let of_one = of(ONE);
        assert_ne!(of_one, 0);
        for (what, command, is_governed) in [
            ("a mount namespace", "mount --bind /mnt/one /mnt/copy && exec /mnt/copy", true),
            ("another script in its place", "mount --bind /mnt/three /mnt/one && exec /mnt/one", false),
            ("another root", "mount --rbind / /mnt/other && exec chroot /mnt/other /mnt/one", true),
            ("a hard link", "ln -f /mnt/one /mnt/hard && exec /mnt/hard", true),
            ("a link", "ln -sf /mnt/one /mnt/soft && exec /mnt/soft", true),
            ("a descriptor", "exec 7</mnt/one; exec /proc/self/fd/7", true),
            ("a copy", "cat /mnt/one > /mnt/copy; exec /mnt/copy", false),
            ("its interpreter", "exec /usr/bin/python3 /mnt/one", false),
            ("another script", "exec /mnt/three", false),
        ] {
            let mark = printed(Command::new("unshare").args(["--mount", "sh", "-c", command]));
            assert_eq!(mark, if is_governed { of_one } else { 0 }, "{what}");
        }
        // A script without a name in a folder.
        let mut other = Actor::other();
        let memory = format!("m = os.memfd_create('one', 0); os.write(m, b'#!/usr/bin/python3\\n{PRINT}\\n')");
        other.run(&memory);
        assert_eq!(run_by(&mut other, &["/proc/self/fd/3"], ", pass_fds=[m], preexec_fn=lambda: os.dup2(m, 3)"), 0);
    }

    // Threat model: P41
    fn an_interpreter_s_block_counts_where_its_script_has_none(world) {
        let mut ipsec = open(world);
        if is_skipped(&ipsec) {
            return;
        }
        acting(ONE, "#!/mnt/governed");
        acting("/mnt/three", "#!/mnt/governed");
        ipsec.apply(&secure()).unwrap();
        let of_interpreter = Actor::governed().number("mark(udp())");
        assert_ne!(of_interpreter, 0);
        assert_eq!(Actor::at(ONE).number("mark(udp())"), of_interpreter);
        let mut with_one = secure();
        add(&mut with_one, ONE, vec![
            ("0.0.0.0/0".parse().unwrap(), usher_protection::Treatment::Bypass),
            ("::/0".parse().unwrap(), usher_protection::Treatment::Bypass),
        ]);
        ipsec.apply(&with_one).unwrap();
        let (mut one, mut three) = (Actor::at(ONE), Actor::at("/mnt/three"));
        assert_eq!(one.number("mark(udp())"), BYPASS);
        assert_eq!(three.number("mark(udp())"), of_interpreter);
        one.run("s = udp()");
        // The script's block goes: its sockets are the interpreter's, which are not trusted.
        ipsec.apply(&secure()).unwrap();
        assert_eq!(one.number("mark(udp())"), of_interpreter);
        assert_eq!(one.errno("s.sendto(b'x', ('10.9.0.1', 9))"), EPERM);
        ipsec.apply(&with_one).unwrap();
        assert_eq!(one.number("mark(udp())"), BYPASS);
        assert_eq!(one.errno("s.sendto(b'x', ('10.1.0.2', 9))"), 0);
    }

    // Threat model: P40
    fn a_script_that_runs_outlasts_policies_and_restarts(world) {
        std::fs::create_dir("/mnt/bpf/pins").unwrap();
        let settings = usher_ipsec::Settings { pins: Some("/mnt/bpf/pins".into()), ..settings(world) };
        let mut ipsec = Ipsec::open(&settings).unwrap();
        if is_skipped(&ipsec) {
            return;
        }
        for path in [ONE, TWO] {
            acting(path, PYTHON);
        }
        // No policy named the script when this process executed it.
        let mut older = Actor::at(ONE);
        ipsec.apply(&both()).unwrap();
        assert_eq!(older.number("mark(udp())"), 0);
        let [of_one, _] = marks();
        let mut one = Actor::at(ONE);
        assert_eq!(one.number("mark(udp())"), of_one);
        // A policy without the script, and one with it again.
        ipsec.apply(&secure()).unwrap();
        assert_eq!(one.number("mark(udp())"), 0);
        ipsec.apply(&both()).unwrap();
        // Sockets may carry the former mark, so the block has another one now.
        let [of_one, _] = marks();
        assert_eq!(one.number("mark(udp())"), of_one);
        // Another file takes the script's place, and nothing has looked it up yet.
        acting("/mnt/new", PYTHON);
        std::fs::rename("/mnt/new", ONE).unwrap();
        let mut latter = Actor::at(ONE);
        for actor in [&mut one, &mut latter] {
            assert_eq!(actor.number("mark(udp())"), of_one);
        }
        ipsec.follow_programs().unwrap();
        for actor in [&mut one, &mut latter] {
            assert_eq!(actor.number("mark(udp())"), of_one);
        }
        // The protector is gone for a while, and its files are open nowhere.
        drop(ipsec);
        std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        assert_eq!(latter.number("mark(udp())"), of_one);
        let mut ipsec = Ipsec::open(&settings).unwrap();
        ipsec.apply(&both()).unwrap();
        assert_eq!(latter.number("mark(udp())"), of_one);
        assert_eq!(Actor::at(ONE).number("mark(udp())"), of_one);
        // Nothing is remembered of processes that are gone.
        let mut other = Actor::other();
        let count = "k = ctypes.create_string_buffer(4); v = ctypes.create_string_buffer(8); p = ctypes.create_string_buffer(b'/mnt/bpf/pins/execution_count')
c = ctypes.CDLL(None).syscall
f = c(321, 7, ctypes.create_string_buffer(struct.pack('Q', ctypes.addressof(p)), 128), 128)
assert f >= 0 and not c(321, 1, ctypes.create_string_buffer(struct.pack('QQQQ', f, ctypes.addressof(k), ctypes.addressof(v), 0), 128), 128)
os.close(f)
r = struct.unpack('Q', v.raw)[0]";
        assert_ne!(other.run(count), "0");
        drop((one, latter));
        eventually("nothing is remembered", || other.run(count) == "0");
        ipsec.close().unwrap();
    }

    // Threat model: P40
    fn io_uring_of_a_script_is_its_own(world) {
        let mut ipsec = open(world);
        if is_skipped(&ipsec) {
            return;
        }
        for path in [ONE, TWO] {
            acting(path, PYTHON);
        }
        ipsec.apply(&both()).unwrap();
        let expected = marks();
        for (path, expected) in [(ONE, expected[0]), (TWO, expected[1]), (OTHER, 0)] {
            let mut actor = Actor::at(path);
            actor.run(include_str!("../world/ring.py"));
            if actor.run("r = ring_works()") != "True" {
                eprintln!("skipped: this kernel has no io_uring for this test");
                return;
            }
            assert_eq!(actor.number("mark(ring_socket())"), expected, "{path}");
        }
    }

    // Threat model: P41
    fn a_file_that_binfmt_misc_hands_on_is_no_script(world) {
        let mut ipsec = open(world);
        if is_skipped(&ipsec) {
            return;
        }
        let folder = "/proc/sys/fs/binfmt_misc";
        let mounted = Command::new("mount").args(["-t", "binfmt_misc", "binfmt_misc", folder]).status().unwrap();
        if !mounted.success() {
            eprintln!("skipped: this kernel has no binfmt_misc");
            return;
        }
        script(ONE, PYTHON, PRINT);
        script("/mnt/two", "# no script", PRINT);
        std::fs::rename("/mnt/two", "/mnt/two.usher").unwrap();
        let networks = vec![("10.1.0.0/24", mandatory(ENCRYPTION))];
        ipsec.apply(&tables(&[(ONE, networks.clone()), ("/mnt/two.usher", networks)])).unwrap();
        std::fs::write(format!("{folder}/register"), format!(":usher:E::usher::{OTHER}:")).unwrap();
        let (one, two) = (of(ONE), of("/mnt/two.usher"));
        std::fs::write(format!("{folder}/usher"), "-1").unwrap();
        assert_ne!(one, 0);
        assert_eq!(two, 0);
    }
}
