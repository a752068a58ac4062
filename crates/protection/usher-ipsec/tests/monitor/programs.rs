//! The files at the paths of programs: replaced, linked, hanging, of others.

use std::path::Path;

use usher_ipsec::Reason;

use super::*;

tests! {
    // Threat model: P36
    fn a_replaced_file_is_governed_from_its_first_socket_on(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let replace = || {
            std::fs::copy(OTHER, "/mnt/new").unwrap();
            std::fs::rename("/mnt/new", GOVERNED).unwrap();
        };
        // A program makes sockets while its file is replaced.
        let mut former = Actor::governed();
        former.begin("marks = set()\nfor n in range(20000):\n with udp() as u: marks.add(mark(u))");
        let mut latter = Vec::new();
        for _ in 0..20 {
            replace();
            let mut actor = Actor::governed();
            // Nothing has looked the file up.
            assert_eq!(actor.number("mark(udp())"), SIGNED | DISCARD);
            latter.push(actor);
        }
        assert_eq!(former.end(), 0);
        assert_eq!(former.run("r = marks"), format!("{{{}}}", SIGNED | DISCARD));
        // Neither another name nor another directory.
        std::fs::create_dir("/mnt/folder").unwrap();
        for other in ["/mnt/Governed", "/mnt/governed-too", "/mnt/folder/governed"] {
            std::fs::copy(OTHER, other).unwrap();
            assert_eq!(Actor::at(other).number("mark(udp())"), 0, "{other}");
        }
        // Files that were never looked up count in the next policy too.
        latter[3].run("u = udp()");
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", To::Trusted)])])).unwrap();
        let live = ipsec.sockets(0, 9).unwrap().sockets;
        assert_eq!(live.len(), 1, "{live:?}");
        assert_eq!(live[0].program.as_ref().unwrap().to_string(), GOVERNED);
        assert_eq!(latter[3].errno("udp().sendto(b'x', ('10.9.0.1', 9))"), EPERM);
        latter[3].run("u = None");
        // Under a policy without the program, it is no longer governed.
        ipsec.apply(&usher_protection::Tables::default()).unwrap();
        assert_eq!(latter[3].number("mark(udp())"), 0);
    }

    // Threat model: P39
    fn a_path_that_hangs_keeps_nobody_waiting(world) {
        // A file system whose process never answers.
        let mut server = Actor::other();
        std::fs::create_dir("/mnt/dead").unwrap();
        server.run("import ctypes
f = os.open('/dev/fuse', os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f'fd={f},rootmode=40000,user_id=0,group_id=0'.encode()
assert libc.mount(b'dead', b'/mnt/dead', b'fuse', 0, options) == 0, ctypes.get_errno()");
        let hangs = vec![("0.0.0.0/0", To::Trusted), ("::/0", To::Trusted)];
        let policy = tables(&[("/mnt/dead/program", hangs), (GOVERNED, vec![("10.1.0.0/24", To::Trusted)])]);
        let mut ipsec = open(world);
        let begun = std::time::Instant::now();
        for _ in 0..20 {
            let applied = ipsec.apply(&policy).unwrap();
            assert_eq!(applied.refused.len(), 1);
            assert_eq!(applied.refused[0].path, Path::new("/mnt/dead/program"));
            assert_eq!(applied.refused[0].reason, Reason::Hangs);
            assert!(ipsec.follow_programs().unwrap().is_none());
        }
        // One second for the first of them alone.
        assert!(begun.elapsed() < std::time::Duration::from_secs(15));
        assert_eq!(Actor::governed().number("mark(udp())"), SIGNED | DISCARD);
        // The file system answers now, with an error.
        server.run("os.close(f)");
        eventually("the path is followed again", || {
            ipsec.apply(&policy).unwrap().refused[0].reason != Reason::Hangs
        });
    }

    // Threat model: P36
    fn a_link_that_leads_elsewhere_is_followed(world) {
        let link = |to: &str| {
            std::os::unix::fs::symlink(to, "/mnt/new").unwrap();
            std::fs::rename("/mnt/new", "/mnt/link").unwrap();
        };
        std::fs::create_dir("/mnt/second").unwrap();
        std::fs::copy(OTHER, "/mnt/second/version").unwrap();
        link(GOVERNED);
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[("/mnt/link", vec![("10.1.0.0/24", To::Trusted)])])).unwrap();
        let mut former = Actor::at("/mnt/link");
        // Old enough that its properties alone are compared from the second time on.
        std::thread::sleep(std::time::Duration::from_secs(4));
        for _ in 0..3 {
            assert!(ipsec.follow_programs().unwrap().is_none());
        }
        link("/mnt/second/version");
        let mut latter = Actor::at("/mnt/link");
        assert_eq!(latter.number("mark(udp())"), 0);
        assert!(ipsec.follow_programs().unwrap().is_some());
        assert_eq!(latter.number("mark(udp())"), SIGNED | DISCARD);
        // A process that runs from the former file stays protected.
        assert_eq!(former.number("mark(udp())"), SIGNED | DISCARD);
        assert!(ipsec.follow_programs().unwrap().is_none());
    }

    // Threat model: P44
    fn an_executable_of_two_blocks_is_refused(world) {
        let mut ipsec = open(world);
        let link = || std::os::unix::fs::symlink(GOVERNED, "/mnt/link").unwrap();
        let both = tables(&[
            (GOVERNED, vec![("10.1.0.0/24", mandatory(ENCRYPTION)), ("10.1.0.3/32", To::Trusted)]),
            ("/mnt/link", vec![("0.0.0.0/0", To::Trusted), ("::/0", To::Trusted)]),
        ]);
        link();
        let error = ipsec.apply(&both).unwrap_err().to_string();
        assert!(error.starts_with("/mnt/governed and /mnt/link, in two"), "{error}");
        let mut governed = Actor::governed();
        assert_eq!(governed.number("mark(udp())"), 0);
        // Without the link they are in force.
        std::fs::remove_file("/mnt/link").unwrap();
        assert_eq!(ipsec.apply(&both).unwrap().refused, []);
        assert_eq!(governed.number("mark(udp())"), SIGNED | DISCARD);
        // The link comes later.
        link();
        let refused = ipsec.follow_programs().unwrap().unwrap().refused;
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].reason, Reason::OfAnotherBlock);
        assert_eq!(refused[0].path.to_str(), Some("/mnt/link"));
        assert_eq!(governed.number("mark(udp())"), SIGNED | DISCARD);
        assert_eq!(ipsec.follow_programs().unwrap(), None, "it is said once");
        // A file of its own.
        std::fs::remove_file("/mnt/link").unwrap();
        std::fs::copy(GOVERNED, "/mnt/link").unwrap();
        let applied = ipsec.follow_programs().unwrap().unwrap();
        assert_eq!((applied.refused, applied.missing), (vec![], vec![]));
        // One block may name a file twice.
        std::fs::remove_file("/mnt/link").unwrap();
        link();
        let mut one = tables(&[(GOVERNED, vec![("10.1.0.0/24", mandatory(ENCRYPTION))])]);
        one.applications[0].programs.push(usher_protection::ProgramName::Path("/mnt/link".into()));
        assert_eq!(ipsec.apply(&one).unwrap().refused, []);
    }

    // Threat model: P44
    fn an_account_cannot_name_another_s_executable(world) {
        let mut ipsec = open(world);
        let mut governed = Actor::governed();
        let bob = |path: &str| std::os::unix::fs::lchown(path, Some(1000), Some(1000)).unwrap();
        let is_governed = |governed: &mut Actor| governed.number("mark(udp())") != 0;
        std::fs::create_dir("/mnt/home").unwrap();
        bob("/mnt/home");
        std::os::unix::fs::symlink(GOVERNED, "/mnt/home/tool").unwrap();
        std::fs::hard_link(GOVERNED, "/mnt/home/hard").unwrap();
        // Root's folder, Bob's on the way.
        std::os::unix::fs::symlink("/mnt/home/tool", "/mnt/way").unwrap();
        for path in ["/mnt/home/tool", "/mnt/home/hard", "/mnt/way"] {
            let networks = vec![("10.1.0.0/24", mandatory(ENCRYPTION))];
            let applied = ipsec.apply(&tables(&[(path, networks)])).unwrap();
            assert_eq!(applied.refused[0].reason, Reason::Replaceable, "{path}");
            assert_eq!(applied.missing.len(), 1, "{path}");
            assert!(!is_governed(&mut governed), "{path}");
            // Bob's own file counts.
            bob(GOVERNED);
            assert_eq!(ipsec.follow_programs().unwrap().unwrap().refused, [], "{path}");
            assert!(is_governed(&mut governed), "{path}");
            std::os::unix::fs::chown(GOVERNED, Some(0), Some(0)).unwrap();
            ipsec.apply(&usher_protection::Tables::default()).unwrap();
        }
        // Root's link counts.
        std::os::unix::fs::symlink(GOVERNED, "/mnt/link").unwrap();
        let networks = vec![("10.1.0.0/24", mandatory(ENCRYPTION))];
        assert_eq!(ipsec.apply(&tables(&[("/mnt/link", networks)])).unwrap().refused, []);
        assert!(is_governed(&mut governed));
    }
}
