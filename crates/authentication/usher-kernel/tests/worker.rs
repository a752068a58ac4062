//! Workers: their identity, their descriptors, their group and their end.

#[path = "world/starter.rs"]
mod starter;
#[macro_use]
mod world;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use starter::{spawn, wait};
use usher_kernel::cgroup::{self, Group};
use usher_kernel::worker::{Command, FileAccess, Input, SpawnError, Stage, Starter};
use usher_system::privileges;
use usher_system::sandbox::confines_files;
use world::*;

const GID: u32 = 61_100;
const GROUPS: [u32; 3] = [GID, 61_101, 61_102];

/// A shell script as ALICE.
fn script(text: &str) -> Command {
    Command {
        program: "/bin/sh".into(),
        arguments: vec![
            "-c".into(),
            text.into(),
            "worker".into(),
            "an argument".into(),
        ],
        environment: vec![
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("USHER_USER".into(), "alice".into()),
        ],
        uid: ALICE,
        gid: GID,
        groups: GROUPS.to_vec(),
        directory: "/tmp".into(),
        name: "imap".into(),
        label: None,
        files: None,
        umask: 0o077,
        setuid: false,
        pam_session: false,
        refused: Vec::new(),
        only: None,
        errors: None,
    }
}

fn leaf(world: &World) -> Group {
    Group::create(&world.cgroup, "worker").unwrap()
}

/// Prints the state that the tests examine, one `name value` a line.
const TELL: &str = r#"
while read -r name value; do
    case $name in
        Uid:|Gid:|Groups:|Cap*|NoNewPrivs:|SigIgn:|SigBlk:|SigCgt:) echo "$name $value" ;;
    esac
done < /proc/self/status
echo "cgroup $(cat /proc/self/cgroup | sed -n s/^0:://p)"
echo "umask $(umask)"
echo "directory $(pwd)"
echo "argument $1"
echo "user $USHER_USER"
echo "environment $(env | sort | cut -d= -f1 | tr '\n' ' ')"
echo "files $(ulimit -n)"
echo "session $(ps -o sid= -p $$ | tr -d ' ') $$"
printf "descriptors "; ls -x /proc/$$/fd
"#;

fn told(connection: TcpStream) -> BTreeMap<String, String> {
    BufReader::new(connection)
        .lines()
        .map(|line| {
            let line = line.unwrap();
            let (name, value) = line.split_once(' ').unwrap_or((&line, ""));
            (
                name.trim_end_matches(':').to_owned(),
                value.split_whitespace().collect::<Vec<_>>().join(" "),
            )
        })
        .collect()
}

tests! {
    // Threat model: A90
    fn refused_clients_are_reset_and_the_next_one_is_served(world) {
        let group = leaf(world);
        let (near, far) = (IpAddr::from([10, 9, 0, 1]), IpAddr::from([127, 0, 0, 1]));
        let echo = script("echo served");
        let rules = [
            Command { refused: vec![far], ..echo.clone() },
            Command { only: Some(near), ..echo.clone() },
        ];
        for family in ["10.9.0.1:8025", "[::ffff:10.9.0.1]:8026"] {
            let listener = TcpListener::bind(family).unwrap();
            let server = SocketAddr::from(([10, 9, 0, 1], listener.local_addr().unwrap().port()));
            let connect = |from: IpAddr| {
                let client = Client::bound(SocketAddr::new(from, 0), server);
                client.connect().unwrap()
            };
            for rule in &rules {
                let (mut refused, mut served) = (connect(far), connect(near));
                let worker = spawn(rule, Input::AcceptOne(listener.as_fd()), &group).unwrap();
                let mut answer = String::new();
                served.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, "served\n");
                assert_eq!(wait(&worker), 0);
                let error = refused.read(&mut [0]).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                // A refused connection alone leaves nothing to serve.
                let _refused = connect(far);
                let none = spawn(rule, Input::AcceptOne(listener.as_fd()), &group);
                assert!(matches!(none, Err(SpawnError::NothingWaiting)), "{none:?}");
            }
            // Without a rule both are served.
            let mut served = connect(far);
            let worker = spawn(&echo, Input::AcceptOne(listener.as_fd()), &group).unwrap();
            let mut answer = String::new();
            served.read_to_string(&mut answer).unwrap();
            assert_eq!((answer.as_str(), wait(&worker)), ("served\n", 0));
        }
    }

    fn a_worker_is_its_user_and_nothing_else(world) {
        let group = leaf(world);
        privileges::raise_descriptor_limit().unwrap();
        // Descriptors and an ignored signal that must not reach the worker.
        let _secret = std::fs::File::open("/etc/shadow").unwrap();
        let leaked = rustix::io::dup(std::fs::File::open("/etc/shadow").unwrap()).unwrap();
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let far = TcpStream::connect("10.9.0.1:8025").unwrap();
        let worker = spawn(&script(TELL), Input::AcceptOne(listener.as_fd()), &group).unwrap();
        let told = told(far);
        assert_eq!(wait(&worker), 0);
        drop(leaked);

        let uid = ALICE.to_string();
        let gid = GID.to_string();
        assert_eq!(told["Uid"], [&*uid; 4].join(" "));
        assert_eq!(told["Gid"], [&*gid; 4].join(" "));
        assert_eq!(told["Groups"], GROUPS.map(|group| group.to_string()).join(" "));
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(told[set], "0000000000000000", "{set}");
        }
        assert_eq!(told["NoNewPrivs"], "1");
        assert_eq!(told["SigIgn"], "0000000000000000");
        assert_eq!(told["SigBlk"], "0000000000000000");
        assert!(told["cgroup"].ends_with("/worker"), "{}", told["cgroup"]);
        assert_eq!(told["umask"], "0077");
        assert_eq!(told["directory"], "/tmp");
        assert_eq!(told["argument"], "an argument");
        assert_eq!(told["user"], "alice");
        assert_eq!(told["environment"], "PATH PWD USHER_USER");
        assert_eq!(told["files"], "1024");
        let (sid, pid) = told["session"].split_once(' ').unwrap();
        assert_eq!((sid, pid.parse()), (pid, Ok(worker.pid)));
        assert_eq!(told["descriptors"], "0 1 2");
    }

    fn workers_start_however_many_descriptors_the_keeper_has(world) {
        let group = leaf(world);
        privileges::raise_descriptor_limit().unwrap();
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let held: Vec<_> = (0..2000).map(|_| listener.try_clone().unwrap()).collect();
        for input in [
            Input::AcceptOne(listener.as_fd()),
            Input::Listener(held[1999].as_fd()),
        ] {
            let _far = TcpStream::connect("10.9.0.1:8025").unwrap();
            let worker = spawn(&script("[ $(ulimit -n) = 1024 ]"), input, &group).unwrap();
            assert_eq!(wait(&worker), 0);
        }
    }

    // Threat model: A114
    fn a_worker_has_no_key_of_the_keepers_session_keyring(world) {
        const JOIN_SESSION_KEYRING: i64 = 1;
        const SESSION_KEYRING: i64 = -3;
        let group = leaf(world);
        // SAFETY: text with an ending zero, and numbers.
        let added = unsafe {
            libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0_i64);
            libc::syscall(
                libc::SYS_add_key,
                c"user".as_ptr(),
                c"of-the-keeper".as_ptr(),
                c"x".as_ptr(),
                1_usize,
                SESSION_KEYRING,
            )
        };
        if added < 0 {
            println!("skipped: no keyrings here: {}", std::io::Error::last_os_error());
            return;
        }
        let search = format!(
            "python3 -c 'import ctypes; \
             found = ctypes.CDLL(None).syscall({}, 10, -3, b\"user\", b\"of-the-keeper\", 0); \
             raise SystemExit(found != -1)'",
            libc::SYS_keyctl
        );
        assert!(!std::process::Command::new("sh").args(["-c", &search]).status().unwrap().success());
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let worker = spawn(&script(&search), Input::Listener(listener.as_fd()), &group).unwrap();
        assert_eq!(wait(&worker), 0);
    }

    fn a_connection_worker_serves_exactly_one(world) {
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let echo = script("read line; echo \"$line, by $(id -u)\"");
        let (mut one, mut two) = (
            TcpStream::connect("10.9.0.1:8025").unwrap(),
            TcpStream::connect("10.9.0.1:8025").unwrap(),
        );
        let first = spawn(&echo, Input::AcceptOne(listener.as_fd()), &group).unwrap();
        one.write_all(b"one\n").unwrap();
        let mut answer = String::new();
        one.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, format!("one, by {ALICE}\n"));
        assert_eq!(wait(&first), 0);
        // The accepted connection is its user's.
        let second = spawn(&script("sleep 100"), Input::AcceptOne(listener.as_fd()), &group).unwrap();
        let (near, far) = (two.peer_addr().unwrap(), two.local_addr().unwrap());
        assert_eq!(usher_system::connections::owner(near, far).unwrap().unwrap().uid, ALICE);
        group.kill().unwrap();
        assert_eq!(wait(&second), -9);
        assert_eq!(two.read(&mut [0]).unwrap_or(0), 0);
        // No connection waits any more.
        let third = spawn(&echo, Input::AcceptOne(listener.as_fd()), &group);
        assert!(matches!(third, Err(SpawnError::NothingWaiting)), "{third:?}");
    }

    fn whoever_comes_second_finds_nothing_waiting_and_does_not_hang(world) {
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        for _ in 0..20 {
            let far = TcpStream::connect("10.9.0.1:8025").unwrap();
            let outcomes: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..2)
                    .map(|_| {
                        scope.spawn(|| {
                            spawn(&script("exit 7"), Input::AcceptOne(listener.as_fd()), &group)
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let started = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            assert_eq!(started, 1, "{outcomes:?}");
            for outcome in outcomes {
                match outcome {
                    Ok(worker) => assert_eq!(wait(&worker), 7),
                    Err(error) => assert!(matches!(error, SpawnError::NothingWaiting), "{error}"),
                }
            }
            drop(far);
        }
    }

    fn a_worker_by_socket_activation_has_the_listener(world) {
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        // Python, because a shell cannot accept.
        let program = "import os, socket\n\
            assert os.environ['LISTEN_PID'] == str(os.getpid())\n\
            assert os.environ['LISTEN_FDS'] == '1'\n\
            assert os.environ['LISTEN_FDNAMES'] == 'imap'\n\
            assert os.fstat(0).st_rdev == os.fstat(1).st_rdev == os.makedev(1, 3)\n\
            listener = socket.socket(fileno=3)\n\
            for number in range(2):\n\
            \x20   connection, _ = listener.accept()\n\
            \x20   connection.sendall(f'{number} {os.getuid()}'.encode())\n\
            \x20   connection.close()\n";
        let command = Command {
            program: "/usr/bin/python3".into(),
            arguments: vec!["-c".into(), program.into()],
            ..script("")
        };
        let worker = spawn(&command, Input::Listener(listener.as_fd()), &group).unwrap();
        for number in 0..2 {
            let mut far = TcpStream::connect("10.9.0.1:8025").unwrap();
            let mut answer = String::new();
            far.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, format!("{number} {ALICE}"));
        }
        assert_eq!(wait(&worker), 0);
        // The keeper's duplicate of the listener keeps the queue.
        TcpStream::connect("10.9.0.1:8025").unwrap();
    }

    fn descriptors_in_the_way_are_moved(world) {
        let group = leaf(world);
        // The listener is descriptor 0, and 1 to 9 hold only the child's own descriptors.
        let listener: OwnedFd = TcpListener::bind("10.9.0.1:8025").unwrap().into();
        let mut far = TcpStream::connect("10.9.0.1:8025").unwrap();
        let mut place = rustix::io::dup(&listener).unwrap();
        std::mem::forget(std::mem::replace(&mut place, {
            // SAFETY: standard input, which nothing in this process uses.
            unsafe { std::os::fd::FromRawFd::from_raw_fd(0) }
        }));
        rustix::io::dup2(&listener, &mut place).unwrap();
        let worker = spawn(&script("echo done"), Input::AcceptOne(place.as_fd()), &group).unwrap();
        let mut answer = String::new();
        far.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "done\n");
        assert_eq!(wait(&worker), 0);
        let check = "test -S /proc/self/fd/3 && exit 5";
        let worker = spawn(&script(check), Input::Listener(place.as_fd()), &group).unwrap();
        assert_eq!(wait(&worker), 5);
        std::mem::forget(place);
    }

    fn a_missing_home_is_the_root_folder(world) {
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let closed = tempfile::tempdir().unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(closed.path(), PermissionsExt::from_mode(0o700)).unwrap();
        for directory in [PathBuf::from("/no/such/home"), closed.path().to_owned()] {
            let far = TcpStream::connect("10.9.0.1:8025").unwrap();
            let command = Command { directory, ..script("echo \"directory $(pwd)\"") };
            let worker = spawn(&command, Input::AcceptOne(listener.as_fd()), &group).unwrap();
            assert_eq!(told(far)["directory"], "/");
            assert_eq!(wait(&worker), 0);
        }
    }

    fn a_worker_has_a_standard_error_of_its_own_or_none(world) {
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let (mut said, errors) = std::io::pipe().unwrap();
        let text = "echo \"errors $(readlink /proc/$$/fd/2)\"; echo a line >&2";
        for errors in [None, Some(std::sync::Arc::new(errors.into()))] {
            let goes_to = if errors.is_some() { "pipe:" } else { "/dev/null" };
            let far = TcpStream::connect("10.9.0.1:8025").unwrap();
            let command = Command { errors, ..script(text) };
            let worker = spawn(&command, Input::AcceptOne(listener.as_fd()), &group).unwrap();
            let errors = told(far)["errors"].clone();
            assert!(errors.starts_with(goes_to), "{errors}");
            assert_eq!(wait(&worker), 0);
        }
        let mut line = String::new();
        said.read_to_string(&mut line).unwrap();
        assert_eq!(line, "a line\n");
    }

    // Threat model: A69
    fn a_worker_touches_its_files_and_no_others(world) {
        if !confines_files() {
            eprintln!("skipped: no Landlock");
            return;
        }
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        for name in ["mine", "shared", "others"] {
            std::fs::create_dir(place(name)).unwrap();
            std::fs::write(place(name).join("old"), "old").unwrap();
        }
        std::fs::write(place("one"), "one").unwrap();
        std::os::unix::fs::symlink("others", place("link")).unwrap();
        for path in ["", "mine", "mine/old", "shared", "shared/old", "others", "others/old", "one"] {
            std::os::unix::fs::chown(place(path), Some(ALICE), Some(GID)).unwrap();
        }
        let text = r#"
            cd "$2"
            try() { if (eval "$2") > /dev/null 2>&1; then echo "$1 done"; else echo "$1 refused"; fi; }
            try write-mine ': > mine/new'
            try read-mine 'cat mine/old'
            try remove-mine 'rm mine/old'
            try write-shared ': > shared/new'
            try read-shared 'cat shared/old'
            try remove-shared 'rm shared/old'
            try write-others ': > others/new'
            try read-others 'cat others/old'
            try list-others 'ls others/'
            try read-link 'cat link/old'
            try read-one 'cat one'
            try write-one ': >> one'
            try execute-true '/bin/true'
        "#;
        let command = |files| Command {
            files,
            arguments: vec!["-c".into(), text.into(), "worker".into(), "x".into(),
                folder.path().display().to_string()],
            ..script("")
        };
        let run = |files| {
            let far = TcpStream::connect("10.9.0.1:8025").unwrap();
            let worker = spawn(&command(files), Input::AcceptOne(listener.as_fd()), &group).unwrap();
            let told = told(far);
            assert_eq!(wait(&worker), 0);
            told
        };
        use FileAccess::{Read, Write};
        let mut files = vec![("/usr".into(), Read), ("/dev/null".into(), Write)];
        files.push((place("mine"), Write));
        files.push((place("shared"), Read));
        files.push((place("one"), Read));
        // A path that is missing, or closed to the user, grants nothing and does not prevent the
        // start.
        files.push((place("missing"), Write));
        files.push(("/root/closed".into(), Write));
        let told = run(Some(files));
        for (deed, allowed) in [
            ("write-mine", true), ("read-mine", true), ("remove-mine", true),
            ("read-shared", true), ("write-shared", false), ("remove-shared", false),
            ("read-others", false), ("write-others", false), ("list-others", false),
            ("read-link", false), ("read-one", true), ("write-one", false),
            ("execute-true", true),
        ] {
            let expected = if allowed { "done" } else { "refused" };
            assert_eq!(told.get(deed).map(String::as_str), Some(expected), "{deed}: {told:?}");
        }
        // Without limits, every deed succeeds: the refusals came from the limits.
        std::fs::write(place("mine/old"), "old").unwrap();
        std::os::unix::fs::chown(place("mine/old"), Some(ALICE), Some(GID)).unwrap();
        let told = run(None);
        assert!(told.values().all(|outcome| outcome == "done"), "{told:?}");
        // The worker may read only the program itself: one that is linked to libraries cannot be executed.
        let _far = TcpStream::connect("10.9.0.1:8025").unwrap();
        match spawn(&command(Some(Vec::new())), Input::AcceptOne(listener.as_fd()), &group) {
            Err(SpawnError::Child(Stage::Execute, error)) => {
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            }
            other => panic!("{other:?}"),
        }
    }

    fn failures_tell_their_stage(world) {
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let input = Input::Listener(listener.as_fd());
        let missing = Command { program: "/no/such/program".into(), ..script("") };
        match spawn(&missing, input, &group) {
            Err(SpawnError::Child(Stage::Execute, error)) => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            }
            other => panic!("{other:?}"),
        }
        // Only root may execute this program: the user starts the program, not the keeper.
        let private = tempfile::NamedTempFile::new().unwrap();
        let command = Command { program: private.path().to_owned(), ..script("") };
        match spawn(&command, input, &group) {
            Err(SpawnError::Child(Stage::Execute, error)) => {
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            }
            other => panic!("{other:?}"),
        }
        let root = Command { uid: 0, ..script("true") };
        assert!(matches!(root.check(), Err(SpawnError::Root)));
        assert!(matches!(spawn(&root, input, &group), Err(SpawnError::Parent(_))));
        let zero = Command { arguments: vec!["a\0b".into()], ..script("") };
        assert!(matches!(zero.check(), Err(SpawnError::Text(_))));
        script("true").check().unwrap();
        // A socket that is not a listener.
        let udp = std::net::UdpSocket::bind("10.9.0.1:9").unwrap();
        udp.send_to(b"x", "10.9.0.1:9").unwrap();
        match spawn(&script("true"), Input::AcceptOne(udp.as_fd()), &group) {
            Err(SpawnError::Child(Stage::Accept, _)) => {}
            other => panic!("{other:?}"),
        }
        // None of the failed starts has left a process.
        eventually("the group is empty", || !group.populated().unwrap());
        // Without CAP_SETUID no worker starts.
        let kept = privileges::Capabilities::SETGID | privileges::Capabilities::SETPCAP;
        privileges::keep_only(kept).unwrap();
        Starter::prepare(kept | privileges::Capabilities::SETUID).unwrap_err();
    }

    fn killing_the_group_ends_a_worker_and_all_it_started(world) {
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        let text = "setsid sleep 1000 & (setsid sleep 1000 &); sleep 1000";
        let worker = spawn(&script(text), Input::Listener(listener.as_fd()), &group).unwrap();
        eventually("it has started others", || group.pids().unwrap().len() == 4);
        assert!(group.populated().unwrap());
        assert!(group.pids().unwrap().contains(&worker.pid));
        let neighbour = Group::create(&world.cgroup, "neighbour").unwrap();
        let other = spawn(&script("sleep 1000"), Input::Listener(listener.as_fd()), &neighbour).unwrap();

        group.kill().unwrap();
        assert_eq!(wait(&worker), -9);
        eventually("the group is empty", || !group.populated().unwrap());
        assert_eq!(group.pids().unwrap(), [0_u32; 0]);
        assert!(neighbour.populated().unwrap());
        neighbour.kill().unwrap();
        assert_eq!(wait(&other), -9);
    }

    fn workers_start_in_a_group_that_was_killed_before(world) {
        let group = leaf(world);
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        for round in 0..3 {
            let text = "test $(sed -n s/^0:://p /proc/self/cgroup | sed s,.*/,,) = worker && sleep 1000";
            let worker = spawn(&script(text), Input::Listener(listener.as_fd()), &group).unwrap();
            eventually("it is in the group", || group.pids().unwrap().contains(&worker.pid));
            eventually("it runs", || group.pids().unwrap().len() == 2);
            group.kill().unwrap();
            assert_eq!(wait(&worker), -9, "{round}");
        }
        // Another keeper adopts the group.
        let again = leaf(world);
        let worker = spawn(&script("exit 3"), Input::Listener(listener.as_fd()), &again).unwrap();
        assert_eq!(wait(&worker), 3);
        eventually("it is empty", || !again.populated().unwrap());
        drop(group);
        again.remove().unwrap();
        assert!(!world.cgroup.join("worker").exists());
    }

    fn cgroups_are_found_and_taken_up(world) {
        assert!(world.cgroup.starts_with(cgroup::mount().unwrap()));
        assert_eq!(cgroup::own().unwrap(), world.cgroup.join("keeper"));
        let made = Group::create(&world.cgroup, "again").unwrap();
        let again = Group::create(&world.cgroup, "again").unwrap();
        assert_eq!(made.path(), again.path());
        Group::create(&world.cgroup.join("missing"), "child").unwrap_err();
    }
}
