//! Listed programs: the kernel knows them by their executables, whatever a process does to its
//! paths.
//!
//! Threat model: A45

#[macro_use]
mod world;
mod ticket;

use std::collections::HashSet;
use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use ticket::*;
use usher_daemon::role::HasRole;
use usher_kernel::ticket::{Counters, Listed, ProgramId, Report, TicketError, Tickets};
use usher_local::roles;
use usher_system::sandbox::{self, LandlockStatus};
use world::*;

const LIST: NonZeroU32 = NonZeroU32::new(1).unwrap();
const OTHER_LIST: NonZeroU32 = NonZeroU32::new(2).unwrap();

/// Perl code that requests the announcement of its standard input, a socket.
const ASKS: &str = "setsockopt(STDIN, 0x5573, 2, pack('L', 0)) or die $!";

fn open_file(path: impl AsRef<Path>) -> OwnedFd {
    rustix::fs::open(path.as_ref(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn identify(tickets: &Tickets, path: impl AsRef<Path>) -> ProgramId {
    let file = open_file(path);
    tickets.listing().identify(file.as_fd()).unwrap().unwrap()
}

/// Lists exactly these programs.
fn list(tickets: &Tickets, entries: &[(NonZeroU32, ProgramId)]) {
    let entries = entries
        .iter()
        .map(|&(list, program)| Listed { list, program });
    let entries: HashSet<Listed> = entries.collect();
    tickets.listing().add(&entries).unwrap();
    tickets.listing().retain(&entries).unwrap();
}

/// The program for which the kernel takes this command.
fn asked_by(tickets: &Tickets, mut command: Command) -> Option<ProgramId> {
    let socket = socket_for(v4(PORT));
    let copy = socket.try_clone().unwrap();
    let output = command.stdin(Stdio::from(copy)).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    tickets.listing().asker(socket.as_fd()).unwrap()
}

/// Perl, by a path.
fn perl(path: impl AsRef<Path>) -> Command {
    let mut command = Command::new(path.as_ref());
    command.args(["-e", ASKS]);
    command
}

/// A shell command in its own mount namespace, as a user who may have one.
fn in_own_namespace(words: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--user",
        "--map-root-user",
        "sh",
        "-e",
        "-c",
        words,
    ]);
    command
}

fn the_report(tickets: &Tickets) -> Report {
    let mut reports = Vec::new();
    eventually("a report", || {
        reports.extend(tickets.holding().reports().unwrap().entries);
        !reports.is_empty()
    });
    reports.remove(0)
}

tests! {
    fn a_listed_program_draws_and_another_is_held_without_a_token(world) {
        let tickets = open(world);
        let server = Server::new();
        let own = identify(&tickets, "/proc/self/exe");
        let other = identify(&tickets, "/usr/bin/perl");
        assert_ne!(own, other);
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        tickets.holding().set_destinations([(v4(PORT), Some(LIST))]).unwrap();
        list(&tickets, &[(LIST, own), (OTHER_LIST, other)]);
        connect(ALICE, &socket_for(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 1);
        connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 2);

        let no_longer = drawn(v4(PORT));
        for listed in [vec![], vec![(OTHER_LIST, own)], vec![(LIST, other)]] {
            list(&tickets, &listed);
            assert_eq!(draw(ALICE, &socket_for(v4(PORT)), v4(PORT)), libc::EACCES);
        }
        // A token that the program drew while it was listed is dropped as well.
        rustix::io::ioctl_fionbio(&no_longer, true).unwrap();
        connect(ALICE, &no_longer, v4(PORT)).unwrap_err();
        let report = the_report(&tickets);
        assert_eq!((report.uid, report.program), (ALICE, Some(own)));
        assert_eq!(report.pid, std::process::id());
        assert!(!report.command.is_empty());
        assert_eq!(tickets.next(&key(ALICE, v4(PORT))).unwrap(), Some(3));
        let counters = tickets.counters().unwrap();
        let expected = Counters { drawn: 3, written: 2, unlisted: 4, held: counters.held,
            established: 2, asked: counters.asked, ..Counters::default() };
        assert_eq!(counters, expected);
    }

    fn where_there_is_no_list_every_program_draws_and_none_is_told(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        tickets.holding().set_destinations([(v4(PORT), None)]).unwrap();
        connect(ALICE, &socket_for(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 1);
        // Bob has no ticket.
        let socket = socket_for(v4(PORT));
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        connect(BOB, &socket, v4(PORT)).unwrap_err();
        assert_eq!(the_report(&tickets).program, None);
        // An address gets a list, then loses it.
        tickets.holding().set_destinations([(v4(PORT), Some(LIST))]).unwrap();
        assert_eq!(draw(ALICE, &socket_for(v4(PORT)), v4(PORT)), libc::EACCES);
        tickets.holding().set_destinations([]).unwrap();
        connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 2);
    }

    fn a_program_is_its_file_by_whichever_name_and_no_copy(world) {
        let tickets = open(world);
        let folder = Path::new("/mnt/programs");
        std::fs::create_dir(folder).unwrap();
        let original = folder.join("perl");
        std::fs::copy("/usr/bin/perl", &original).unwrap();
        let program = Some(identify(&tickets, &original));
        std::fs::hard_link(&original, folder.join("linked")).unwrap();
        std::os::unix::fs::symlink(&original, folder.join("pointing")).unwrap();
        std::fs::copy(&original, folder.join("copied")).unwrap();
        std::fs::write(folder.join("mounted"), "").unwrap();
        run("mount", &["--bind", "/mnt/programs/perl", "/mnt/programs/mounted"]);
        for name in ["perl", "linked", "pointing", "mounted"] {
            assert_eq!(Some(identify(&tickets, folder.join(name))), program, "{name}");
            assert_eq!(asked_by(&tickets, perl(folder.join(name))), program, "{name}");
        }
        let copy = asked_by(&tickets, perl(folder.join("copied")));
        assert_eq!(copy, Some(identify(&tickets, folder.join("copied"))));
        assert_ne!(copy, program);
        // A script counts as its interpreter.
        std::fs::write(folder.join("script"), format!("#!/mnt/programs/perl\n{ASKS};\n")).unwrap();
        run("chmod", &["755", "/mnt/programs/script"]);
        assert_eq!(asked_by(&tickets, Command::new(folder.join("script"))), program);
        assert_ne!(Some(identify(&tickets, folder.join("script"))), program);
        // A socket without a request has no asker.
        assert_eq!(tickets.listing().asker(socket_for(v4(PORT)).as_fd()).unwrap(), None);
    }

    fn a_replaced_file_is_another_program(world) {
        let tickets = open(world);
        let path = Path::new("/mnt/perl");
        std::fs::copy("/usr/bin/perl", path).unwrap();
        // The file is identified while it is open, as the signer does it.
        let former = open_file(path);
        let former = tickets.listing().identify(former.as_fd()).unwrap();
        let script = "<STDIN>; setsockopt(STDOUT, 0x5573, 2, pack('L', 0)) or die $!";
        let socket = socket_for(v4(PORT));
        let mut running = Command::new(path)
            .args(["-e", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::from(socket.try_clone().unwrap()))
            .spawn()
            .unwrap();
        std::fs::copy("/usr/bin/perl", "/mnt/perl.dpkg-new").unwrap();
        std::fs::rename("/mnt/perl.dpkg-new", path).unwrap();
        // The file's last name is removed.
        drop(running.stdin.take());
        assert!(running.wait().unwrap().success());
        assert_eq!(tickets.listing().asker(socket.as_fd()).unwrap(), None);
        let now = asked_by(&tickets, perl(path));
        assert_eq!(now, Some(identify(&tickets, path)));
        assert_ne!(now, former);
    }

    fn a_namespace_of_the_users_own_makes_no_file_another(world) {
        let tickets = open(world);
        std::fs::copy("/usr/bin/perl", "/mnt/listed").unwrap();
        std::fs::copy("/usr/bin/perl", "/mnt/other").unwrap();
        let (listed, other) = (identify(&tickets, "/mnt/listed"), identify(&tickets, "/mnt/other"));
        let script = format!("/mnt/listed -e \"{}\"", ASKS.replace('$', "\\$"));
        assert_eq!(asked_by(&tickets, in_own_namespace(&script)), Some(listed));
        let bound = format!("mount --bind /mnt/other /mnt/listed; {script}");
        assert_eq!(asked_by(&tickets, in_own_namespace(&bound)), Some(other));
        let hidden = format!(
            "mount -t tmpfs tmpfs /mnt; cp /usr/bin/perl /mnt/listed; {script}"
        );
        let hidden = asked_by(&tickets, in_own_namespace(&hidden));
        assert!(hidden.is_some() && hidden != Some(listed) && hidden != Some(other));
    }

    fn a_program_on_an_overlay_is_itself(world) {
        let tickets = open(world);
        for folder in ["lower", "upper", "work", "merged"] {
            std::fs::create_dir(format!("/mnt/{folder}")).unwrap();
        }
        // An overlay of two file systems: stat(2) shows inode numbers of the lower ones.
        run("mount", &["-t", "tmpfs", "tmpfs", "/mnt/lower"]);
        std::fs::copy("/usr/bin/perl", "/mnt/lower/perl").unwrap();
        std::fs::copy("/usr/bin/perl", "/mnt/lower/other").unwrap();
        let options = "lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work";
        let mounted = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", options, "/mnt/merged"])
            .status()
            .unwrap();
        if !mounted.success() {
            eprintln!("skipped: this kernel has no overlay");
            return;
        }
        let program = identify(&tickets, "/mnt/merged/perl");
        assert_ne!(program, identify(&tickets, "/mnt/lower/perl"));
        assert_ne!(program, identify(&tickets, "/mnt/merged/other"));
        assert_eq!(asked_by(&tickets, perl("/mnt/merged/perl")), Some(program));
        assert_ne!(asked_by(&tickets, perl("/mnt/merged/other")), Some(program));
        assert_ne!(asked_by(&tickets, perl("/mnt/lower/perl")), Some(program));
    }

    fn lists_that_are_full_take_all_or_nothing(world) {
        let tickets = open(world);
        let own = identify(&tickets, "/proc/self/exe");
        let lists = (1..=5).map(|number| Listed {
            list: NonZeroU32::new(number).unwrap(),
            program: own,
        });
        let lists: Vec<Listed> = lists.collect();
        let first = HashSet::from([lists[0]]);
        tickets.listing().add(&first).unwrap();
        let all = lists.iter().copied().collect();
        assert!(matches!(tickets.listing().add(&all), Err(TicketError::Full)));
        let four: HashSet<Listed> = lists[..4].iter().copied().collect();
        tickets.listing().add(&four).unwrap();
        tickets.listing().retain(&HashSet::new()).unwrap();
        tickets.listing().add(&four).unwrap();
    }

    fn a_confined_signer_identifies_unreadable_programs(world) {
        let tickets = open(world);
        std::fs::copy("/usr/bin/perl", "/mnt/perl").unwrap();
        run("chmod", &["711", "/mnt/perl"]);
        let program = identify(&tickets, "/mnt/perl");
        let status = sandbox::landlock(&[Path::new("/etc")], &[]).unwrap();
        let signer = roles::Signer::ROLE.sandbox.unwrap();
        sandbox::seccomp(signer.abilities).unwrap();
        assert_eq!(identify(&tickets, "/mnt/perl"), program);
        if status != LandlockStatus::Absent {
            File::open("/mnt/perl").unwrap_err();
        }
        list(&tickets, &[(LIST, program)]);
        list(&tickets, &[]);
    }
}
