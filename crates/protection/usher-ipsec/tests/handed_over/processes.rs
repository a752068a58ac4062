//! Whether a process that is handed a socket is governed.

use super::*;

/// A script that does what a test says, after its process has had another program.
const SCRIPT: &str = "/mnt/script";

tests! {
    /// Each program is known to be ungoverned before.
    // Threat model: P28
    fn an_exec_ends_what_is_known_of_a_process(world) {
        std::fs::write(SCRIPT, format!("#!{OTHER}\nprint('ok', end=' ')\n{}", include_str!("../world/actor.py"))).unwrap();
        run("chmod", &["755", SCRIPT]);
        let networks = || vec![("10.1.0.0/24", mandatory(ENCRYPTION))];
        let policy = tables(&[(GOVERNED, networks()), (SCRIPT, networks())]);
        let Some((_ipsec, mut maker, mut peer)) = listening(world, &policy, Actor::other) else {
            return;
        };
        // An interpreter with a script as its argument executes no script.
        for (program, arguments, expected) in [
            (OTHER, format!("['other', '{SCRIPT}']"), 0),
            (GOVERNED, format!("['governed', '{SCRIPT}']"), EPERM),
            (SCRIPT, format!("['{SCRIPT}']"), EPERM),
        ] {
            let mut user = Actor::other();
            pass_connection("10.1.0.2", &mut peer, &mut maker, &mut user);
            peer.run("s.send(b'question')");
            assert_eq!(user.errno("r = os.read(f, 1)"), 0, "{program}");
            user.run("os.dup2(f, 99)");
            user.run(&format!("os.execv('{program}', {arguments})"));
            assert_eq!(user.errno("r = os.read(99, 1)"), expected, "{program}");
        }
    }

    // Threat model: P28
    fn a_later_policy_governs_a_process_known_to_be_ungoverned(world) {
        std::fs::copy(OTHER, MAKER).unwrap();
        let Some((mut ipsec, mut maker, mut peer)) = listening(world, &secure(), Actor::other) else {
            return;
        };
        let mut users = [Actor::at(MAKER), Actor::other()];
        let networks = vec![("10.1.0.0/24", mandatory(ENCRYPTION)), ("10.1.0.3/32", To::Trusted)];
        let later = tables(&[(MAKER, networks)]);
        for (policy, expected) in [(&secure(), 0), (&later, EPERM), (&secure(), 0), (&later, EPERM)] {
            ipsec.apply(policy).unwrap();
            for (from, user, errno) in uses_of("10.1.0.2", "10.1.0.3") {
                let user = &mut users[user];
                pass_connection(from, &mut peer, &mut maker, user);
                uses(&mut peer, user, from, errno.min(expected));
            }
        }
    }

    /// Nothing looks files up meanwhile.
    // Threat model: P28
    fn a_process_is_governed_while_its_file_has_the_place(world) {
        std::fs::copy(OTHER, "/mnt/early").unwrap();
        let Some((_ipsec, mut maker, mut peer)) = listening(world, &secure(), Actor::other) else {
            return;
        };
        let mut user = Actor::at("/mnt/early");
        let mut path = "/mnt/early";
        for (name, expected) in [("/mnt/late", 0), (GOVERNED, EPERM), ("/mnt/early", 0)] {
            std::fs::rename(path, name).unwrap();
            path = name;
            for (from, expected) in [("10.1.0.2", expected), ("10.1.0.3", 0)] {
                pass_connection(from, &mut peer, &mut maker, &mut user);
                uses(&mut peer, &mut user, from, expected);
            }
        }
    }

    // Threat model: P37
    fn no_block_names_usher_s_daemons(world) {
        std::fs::copy(OTHER, "/mnt/daemon").unwrap();
        std::os::unix::fs::symlink("/mnt/daemon", "/mnt/link").unwrap();
        let settings = usher_ipsec::Settings { daemons: "/mnt/daemon".into(), ..settings(world) };
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        let named = |path: &str| {
            let mut policy = secure();
            let networks = policy.applications[0].networks.clone();
            add(&mut policy, path, networks);
            policy
        };
        for path in ["/mnt/daemon", "/mnt/link"] {
            let policy = named(path);
            for outcome in [ipsec.check(&policy), ipsec.apply(&policy).map(drop)] {
                let refused = outcome.unwrap_err().to_string();
                assert!(refused.contains(path) && refused.contains("`service` blocks"), "{refused}");
            }
        }
        // A link that comes to lead there.
        std::fs::remove_file("/mnt/link").unwrap();
        assert_eq!(ipsec.apply(&named("/mnt/link")).unwrap().missing.len(), 1);
        std::os::unix::fs::symlink("/mnt/daemon", "/mnt/link").unwrap();
        let refused = ipsec.follow_programs().unwrap().unwrap().refused;
        assert_eq!(refused[0].reason, usher_ipsec::Reason::OfDaemons);
        assert_eq!(Actor::at("/mnt/daemon").number("mark(udp())"), 0);
        // The twin: another file there.
        std::fs::remove_file("/mnt/link").unwrap();
        std::fs::copy(OTHER, "/mnt/link").unwrap();
        assert_eq!(ipsec.follow_programs().unwrap().unwrap().refused, []);
        assert_ne!(Actor::at("/mnt/link").number("mark(udp())"), 0);
    }
}
