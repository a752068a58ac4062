//! Accounts that the administrator has closed are not served, whatever Usher's own policy says. Real
//! PAM decides, by the stock file for the service `usher`, and opens sessions where policy says so.

mod origin;
#[path = "../reading/mod.rs"]
mod reading;

use std::collections::BTreeMap;

use reading::{Outcome, connect, is_gone, is_served, lives, who};
use usher_lab::{ALICE, BOB, Lab, Mail, PATIENCE, Running, eventually};

/// How an account is closed, how it is opened again, and whether only alice's is.
const WAYS: [(&str, &str, bool); 5] = [
    (
        "chage --expiredate 1 alice",
        "chage --expiredate -1 alice",
        true,
    ),
    ("passwd -q -l alice", "passwd -q -u alice", true),
    ("chage --lastday 0 alice", "chage --lastday -1 alice", true),
    (
        "usermod --shell /usr/sbin/nologin alice",
        "usermod --shell /bin/sh alice",
        true,
    ),
    (
        "echo 'back at five' >/etc/nologin",
        "rm /etc/nologin",
        false,
    ),
];

/// Returns whether a process is started for the user, whose session may be open: then a closed
/// account is refused by a reset.
fn gets_in(mail: &Mail, user: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user(user)
        .input("x LOGOUT\r\n")
        .run()?;
    let greeted = connection.stdout.contains(&format!("Logged in as {user}"));
    assert_eq!(greeted, connection.status.success(), "{connection:?}");
    Ok(greeted)
}

// Threat model: A88
#[test]
fn a_closed_account_is_refused_until_it_is_opened_again() -> Outcome {
    let mail = Lab::mail()?;
    let shell = |command: &str| mail.mailhost.run(["sh", "-e", "-c", command]);
    shell("echo alice:secret | chpasswd")?;
    let mut before = connect(&mail, "alice")?;
    for (close, open, alice_only) in WAYS {
        shell(close)?;
        assert!(!gets_in(&mail, "alice")?, "{close}");
        assert_eq!(gets_in(&mail, "bob")?, alice_only, "{close}");
        lives(&mut before)?;
        shell(open)?;
        assert!(gets_in(&mail, "alice")?, "{open}");
        assert!(gets_in(&mail, "bob")?, "{open}");
    }
    Ok(())
}

/// Has alice's account in a directory that is asked after the local file (programs/directory.c).
const DIRECTORY: &str = "grep ^alice: /etc/passwd | sed s/:x:/:*:/ >/etc/directory
    sed -i /^alice:/d /etc/passwd
    sed -i '/^passwd:/d' /etc/nsswitch.conf
    echo 'passwd: files hesiod' >>/etc/nsswitch.conf
    mkdir /etc/directory.hangs
    mount --bind /var/lib/directory.so /usr/lib/*/libnss_hesiod.so.2";

fn mail_with_directory() -> Result<Mail, Box<dyn std::error::Error>> {
    let mut mail = Lab::mail()?;
    let host = &mail.mailhost;
    let flags = ["-shared", "-fPIC"];
    host.compile_alone("directory.c", &flags, "/var/lib/directory.so")?;
    host.run(["sh", "-e", "-c", DIRECTORY])?;
    mail.keeper.restart()?;
    Ok(mail)
}

/// Has all accounts looked up, as any change of the local ones does, and waits until the directory was asked
/// about alice's.
fn ask_about_alice(mail: &Mail) -> Outcome {
    let host = &mail.mailhost;
    host.run(["sh", "-e", "-c", ": >/var/lib/asked; touch /etc/passwd"])?;
    eventually("the directory is asked about alice", || {
        Ok(host.read("/var/lib/asked")?.contains("alice\n"))
    })
}

// Threat model: A88
#[test]
fn a_directory_that_is_away_or_hangs_ends_no_session() -> Outcome {
    let mail = mail_with_directory()?;
    let host = &mail.mailhost;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    host.run(["touch", "/etc/directory.fails"])?;
    // By the third time an account that was missing twice would be gone.
    for _ in 0..3 {
        ask_about_alice(&mail)?;
        lives(&mut alice)?;
    }
    host.run(["rm", "/etc/directory.fails"])?;
    // The twin, which the directory knows not, while it does not answer about alice.
    host.run(["touch", "/etc/directory.hangs/alice"])?;
    ask_about_alice(&mail)?;
    host.run(["sed", "-i", "/^bob:/d", "/etc/passwd"])?;
    is_gone(&mail, &mut bob, BOB)?;
    lives(&mut alice)?;
    eventually("doctor says so", || {
        let doctor = host.command(["usher", "doctor"]).run()?.stdout;
        Ok(doctor.contains("the name service does not answer about 1 account"))
    })?;
    host.run(["rm", "/etc/directory.hangs/alice"])?;
    eventually("alice is served", || gets_in(&mail, "alice"))?;
    lives(&mut alice)
}

// Threat model: A88
#[test]
fn an_account_gone_from_a_directory_is_gone_not_closed() -> Outcome {
    let mail = mail_with_directory()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    mail.mailhost.run(["cp", "/dev/null", "/etc/directory"])?;
    // Until the keeper no longer believes its last answer she may be served.
    eventually("alice is refused", || {
        let again = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
        let said = again.user("alice").input("x LOGOUT\r\n").run()?;
        assert!(!said.stderr.contains("closed"), "{said:?}");
        Ok(said.stderr.contains("did not accept"))
    })?;
    is_gone(&mail, &mut alice, ALICE)?;
    lives(&mut bob)
}

/// Alice is refused, and told this.
fn is_told(mail: &Mail, text: &str) -> Outcome {
    let refused = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .run()?;
    assert!(refused.stderr.contains(text), "{refused:?}");
    Ok(())
}

#[test]
fn the_reason_of_a_closed_account_is_told() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost
        .run(["sh", "-c", "echo 'back at five' >/etc/nologin"])?;
    is_told(&mail, "the user's account on this server is closed")?;
    eventually("the journal has the reason", || {
        Ok(mail.keeper.log()?.contains("back at five"))
    })
}

#[test]
fn a_password_that_ages_out_is_told_before() -> Outcome {
    let mail = Lab::mail()?;
    let shell = |command: &str| mail.mailhost.run(["sh", "-e", "-c", command]);
    for user in ["alice", "bob"] {
        shell(&format!("echo {user}:secret | chpasswd"))?;
    }
    // Three days are left, and it is warned about from five on.
    shell("chage --lastday $(date -d '-7 days' +%F) --maxdays 10 --warndays 5 alice")?;
    assert!(gets_in(&mail, "bob")? && gets_in(&mail, "alice")?);
    assert!(mail.keeper.wait_log("will expire in", PATIENCE)?);
    assert!(gets_in(&mail, "alice")?);
    let log = mail.keeper.log()?;
    let warnings: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("PAM warns"))
        .collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("user=alice"), "{warnings:?}");
    // As announced.
    shell("chage --lastday $(date -d '-11 days' +%F) alice")?;
    assert!(!gets_in(&mail, "alice")? && gets_in(&mail, "bob")?);
    Ok(())
}

// Threat model: A88
#[test]
fn a_module_that_hangs_holds_up_its_user_only() -> Outcome {
    let mail = Lab::mail()?;
    let service = "account [success=done default=ignore] pam_succeed_if.so quiet user = bob\n\
        account required pam_exec.so /bin/sleep 1000\n";
    mail.mailhost.write("/etc/pam.d/usher", service)?;
    let waiting = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    eventually("the module runs", || {
        let processes = mail.mailhost.processes()?;
        Ok(processes.iter().any(|process| process.name == "sleep"))
    })?;
    assert!(is_served(&mail, "bob", "imap")?);
    drop(waiting);
    is_told(
        &mail,
        "could not find out in time whether the user's account may be used",
    )?;
    eventually("nothing of the module is left", || runs(&mail, "sleep", 0))
}

/// Returns whether so many processes of this name run on mailhost.
fn runs(mail: &Mail, name: &str, count: usize) -> Result<bool, Box<dyn std::error::Error>> {
    let processes = mail.mailhost.processes()?;
    let named = processes.iter().filter(|process| process.name == name);
    Ok(named.count() == count)
}

/// Two services that differ in their sessions only. Each says what its process is, and stays until
/// its client has gone.
const SESSIONS: &str = r#"
service inside {
  program "/var/lib/tell";
  listen 7101; style connection; users mail; hosts laptop; environment "GREETING=policy"; pam session;
}
service outside {
  program "/var/lib/tell";
  listen 7102; style connection; users mail; hosts laptop; environment "GREETING=policy";
}
"#;
const SESSIONS_CLIENT: &str = "client sessions { users mail; service inside at mailhost port 7101; \
    service outside at mailhost port 7102; }\n";
const TELL: &str = r#"#!/usr/bin/python3
import os, sys
told = dict(os.environ)
for line in open("/proc/self/limits").readlines()[1:]:
    name, values = line[:26].strip(), line[26:].split()
    told[name] = " ".join(values[:2])
told["cwd"] = os.getcwd()
told["nice"] = str(os.nice(0))
told["owner"] = str(os.stat(".").st_uid)
told["keyring"] = [line.split()[5] for line in open("/proc/keys") if " _ses" in line][0]
for name, value in sorted(told.items()):
    print(name, value, sep="=")
print("all", flush=True)
sys.stdin.read()
"#;

/// A module that notes what it is called for, and whose user it is.
const NOTING: &str = "session required pam_exec.so /var/lib/note\n";
const NOTE: &str = "#!/bin/sh\necho \"$PAM_TYPE $PAM_USER\" >>/var/lib/noted\n";
/// A rule for alice only.
const ALICE_ONLY: &str =
    "session [success=done default=ignore] pam_succeed_if.so quiet user = bob\n";

fn mail_with_sessions() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    for (path, text) in [("/var/lib/tell", TELL), ("/var/lib/note", NOTE)] {
        host.write_program(path, text)?;
    }
    host.write("/var/lib/noted", "")?;
    mail.add_policies("sessions", SESSIONS, SESSIONS_CLIENT)?;
    Ok(mail)
}

/// Adds lines to the file that Usher installs.
fn add_modules(mail: &Mail, lines: &str) -> Outcome {
    let mut file = mail.mailhost.read("/etc/pam.d/usher")?;
    file.push('\n');
    file.push_str(lines);
    Ok(mail.mailhost.write("/etc/pam.d/usher", file)?)
}

fn open(mail: &Mail, user: &str, service: &str) -> Result<Running, Box<dyn std::error::Error>> {
    let destination = format!("mailhost:{service}");
    let command = mail.laptop.command(["usher", "connect", &destination]);
    Ok(command.user(user).spawn()?)
}

/// The report of a new connection's process about itself.
fn told(
    mail: &Mail,
    user: &str,
    service: &str,
) -> Result<(Running, BTreeMap<String, String>), Box<dyn std::error::Error>> {
    let mut connection = open(mail, user, service)?;
    let text = connection.read_past("all\n", PATIENCE)?;
    let entries = text.lines().filter_map(|line| line.split_once('='));
    let entries = entries.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok((connection, entries.collect()))
}

/// Returns whether a new connection is reset before its process says anything.
fn is_reset(mail: &Mail, user: &str, service: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let mut connection = open(mail, user, service)?;
    let ended = connection.wait(PATIENCE)?;
    Ok(ended.ok_or("it goes on")?.code() != Some(0))
}

/// Waits until the modules have noted this, and nothing else.
fn noted(mail: &Mail, expected: &str) -> Outcome {
    eventually(expected, || {
        Ok(mail.mailhost.read("/var/lib/noted")? == expected)
    })
}

#[test]
fn limits_conf_counts_inside_a_session_and_not_outside() -> Outcome {
    let mail = mail_with_sessions()?;
    let limits = "alice soft nofile 200\nalice hard nofile 300\nalice - nproc 5000\n\
        alice - priority 3\n";
    mail.mailhost
        .write("/etc/security/limits.d/alice.conf", limits)?;
    let (_alice, inside) = told(&mail, "alice", "inside")?;
    assert_eq!(inside["Max open files"], "200 300");
    assert_eq!(inside["Max processes"], "5000 5000");
    assert_eq!(inside["nice"], "3");
    let (_bob, others) = told(&mail, "bob", "inside")?;
    let (_outside, outside) = told(&mail, "alice", "outside")?;
    for (name, value) in outside.iter().filter(|(name, _)| name.starts_with("Max ")) {
        // pam_limits has no entry for bob.
        assert_eq!(others.get(name), Some(value), "{name}");
        let changed = ["Max open files", "Max processes"];
        let is_changed = changed.contains(&name.as_str());
        assert_eq!(inside[name] != *value, is_changed, "{name}: {value}");
    }
    assert_eq!((&*outside["nice"], &*others["nice"]), ("0", "0"));
    Ok(())
}

#[test]
fn a_worker_gets_the_environment_that_modules_set() -> Outcome {
    let mail = mail_with_sessions()?;
    let environment = "FROM_PAM=a = b\nPATH=/evil\nHOME=/evil\nUSHER_USER=root\nLISTEN_FDS=9\n\
        GREETING=pam\n";
    mail.mailhost.write("/etc/environment", environment)?;
    let (_inside, mut inside) = told(&mail, "alice", "inside")?;
    let (_outside, mut outside) = told(&mail, "alice", "outside")?;
    assert_eq!(inside.remove("FROM_PAM").as_deref(), Some("a = b"));
    for (name, value) in [("GREETING", "policy"), ("USHER_USER", "alice")] {
        assert_eq!(inside[name], value);
    }
    // Each has a session keyring of the user's own, without a name.
    for told in [&mut inside, &mut outside] {
        told.remove("USHER_SERVICE");
        assert_eq!(told["keyring"], "2001");
    }
    assert_eq!(inside, outside);
    Ok(())
}

#[test]
fn a_session_opens_before_the_worker_and_closes_after_it() -> Outcome {
    let mail = mail_with_sessions()?;
    add_modules(&mail, NOTING)?;
    let (_outside, _) = told(&mail, "alice", "outside")?;
    let (alice, _) = told(&mail, "alice", "inside")?;
    noted(&mail, "open_session alice\n")?;
    let (bob, _) = told(&mail, "bob", "inside")?;
    drop(alice);
    noted(
        &mail,
        "open_session alice\nopen_session bob\nclose_session alice\n",
    )?;
    drop(bob);
    noted(
        &mail,
        "open_session alice\nopen_session bob\nclose_session alice\nclose_session bob\n",
    )?;
    eventually("no session is held", || runs(&mail, "usher-pam", 0))
}

// Threat model: A91
#[test]
fn a_session_outlives_the_keeper_as_its_worker_does() -> Outcome {
    let mut mail = mail_with_sessions()?;
    add_modules(&mail, NOTING)?;
    let (alice, _) = told(&mail, "alice", "inside")?;
    mail.keeper.crash()?;
    mail.keeper.start()?;
    let (bob, _) = told(&mail, "bob", "inside")?;
    noted(&mail, "open_session alice\nopen_session bob\n")?;
    drop(alice);
    noted(
        &mail,
        "open_session alice\nopen_session bob\nclose_session alice\n",
    )?;
    drop(bob);
    eventually("no session is held", || runs(&mail, "usher-pam", 0))
}

// Threat model: A91
#[test]
fn a_session_is_closed_when_the_user_is_disabled() -> Outcome {
    let mail = mail_with_sessions()?;
    add_modules(&mail, NOTING)?;
    let (_alice, _) = told(&mail, "alice", "inside")?;
    let (_bob, _) = told(&mail, "bob", "inside")?;
    mail.mailhost
        .run(["usher", "user", "disable", "alice", "--reason", "left"])?;
    noted(
        &mail,
        "open_session alice\nopen_session bob\nclose_session alice\n",
    )
}

#[test]
fn a_session_makes_the_home_that_is_missing() -> Outcome {
    let mail = mail_with_sessions()?;
    mail.mailhost.run(["mv", "/home/alice", "/home/former"])?;
    let (_outside, outside) = told(&mail, "alice", "outside")?;
    assert_eq!((&*outside["cwd"], &*outside["owner"]), ("/", "0"));
    add_modules(&mail, "session required pam_mkhomedir.so\n")?;
    let (_inside, inside) = told(&mail, "alice", "inside")?;
    assert_eq!(
        (&*inside["cwd"], &*inside["owner"]),
        ("/home/alice", "2001")
    );
    Ok(())
}

#[test]
fn a_session_that_a_module_refuses_is_told_with_its_reason() -> Outcome {
    let mail = mail_with_sessions()?;
    add_modules(
        &mail,
        &format!("{ALICE_ONLY}session required pam_deny.so\n"),
    )?;
    assert!(is_reset(&mail, "alice", "inside")?);
    let reason = "PAM opens no session: Cannot make/remove an entry for the specified session";
    assert!(mail.keeper.wait_log(reason, PATIENCE)?);
    let doctor = mail.mailhost.command(["usher", "doctor"]).run()?;
    for text in [who(&mail)?, doctor.stdout] {
        assert!(text.contains(reason), "{text}");
    }
    for (user, service) in [("bob", "inside"), ("alice", "outside")] {
        told(&mail, user, service)?;
    }
    Ok(())
}

// Threat model: A91
#[test]
fn a_session_module_that_hangs_is_ended_with_all_it_started() -> Outcome {
    let mail = mail_with_sessions()?;
    // The one in a session of its own, whose parent has ended; the other is waited for.
    mail.mailhost.write_program(
        "/var/lib/hang",
        "#!/bin/sh\n(setsid sleep 1000 &)\nsleep 1000\n",
    )?;
    let hang = "session required pam_exec.so /var/lib/hang\n";
    add_modules(&mail, &format!("{ALICE_ONLY}{hang}"))?;
    let mut alice = open(&mail, "alice", "inside")?;
    eventually("the module runs", || runs(&mail, "sleep", 2))?;
    told(&mail, "bob", "inside")?;
    let ended = alice.wait(PATIENCE)?.ok_or("it waits")?;
    assert_ne!(ended.code(), Some(0));
    let reason = "PAM opens no session: the modules took too long and were killed";
    assert!(mail.keeper.wait_log(reason, PATIENCE)?);
    assert!(runs(&mail, "sleep", 0)?);
    eventually("no session is held", || runs(&mail, "usher-pam", 0))
}

// Threat model: A91
#[test]
fn what_a_module_leaves_running_ends_with_the_session() -> Outcome {
    let mail = mail_with_sessions()?;
    mail.mailhost
        .write_program("/var/lib/leave", "#!/bin/sh\n(setsid sleep 1000 &)\n")?;
    add_modules(
        &mail,
        "session required pam_exec.so type=open_session /var/lib/leave\n",
    )?;
    let (alice, _) = told(&mail, "alice", "inside")?;
    assert!(runs(&mail, "sleep", 1)?);
    drop(alice);
    eventually("nothing is left", || runs(&mail, "sleep", 0))
}

#[test]
fn a_module_that_takes_the_process_elsewhere_is_named() -> Outcome {
    let mail = mail_with_sessions()?;
    // As pam_systemd has the service manager do.
    mail.mailhost.write_program(
        "/var/lib/move",
        "#!/bin/sh -e\nmount=$(awk '$3 == \"cgroup2\" { print $2; exit }' /proc/mounts)\n\
         own=$(grep ^0:: /proc/self/cgroup)\nelsewhere=$mount${own#0::}/../elsewhere\n\
         mkdir -p \"$elsewhere\"\necho $PPID >\"$elsewhere/cgroup.procs\"\n",
    )?;
    let moves = "session required pam_exec.so type=open_session /var/lib/move\n";
    add_modules(&mail, &format!("{ALICE_ONLY}{moves}"))?;
    assert!(is_reset(&mail, "alice", "inside")?);
    let reason = "a module has moved the process into another control group";
    assert!(mail.keeper.wait_log(reason, PATIENCE)?);
    told(&mail, "bob", "inside")?;
    Ok(())
}

#[test]
fn a_session_is_made_by_the_keepers_own_version() -> Outcome {
    let mail = mail_with_sessions()?;
    told(&mail, "alice", "inside")?;
    // As an upgrade does, which restarts the keeper later.
    let installed = "/run/lab/bin/usherd";
    let kept = mail.mailhost.run(["sha256sum", installed])?.stdout;
    mail.mailhost
        .run(["mount", "--bind", "/bin/false", installed])?;
    assert_ne!(mail.mailhost.run(["sha256sum", installed])?.stdout, kept);
    for user in ["alice", "bob"] {
        told(&mail, user, "inside")?;
    }
    Ok(())
}

#[test]
fn a_user_whose_sessions_stay_open_gets_no_more() -> Outcome {
    const LEAVING: &str = "#!/bin/sh\n(setsid sleep 1000 >/dev/null 2>&1 &)\necho all\nexec cat\n";
    const SERVICE: &str = "service leaving { program \"/var/lib/leaving\"; listen 7103; \
        style connection; connections 2; users mail; hosts laptop; pam session; }\n";
    const CLIENT: &str = "client leaving { users mail; service leaving at mailhost port 7103; }\n";
    let mail = mail_with_sessions()?;
    mail.mailhost.write_program("/var/lib/leaving", LEAVING)?;
    mail.add_policies("leaving", SERVICE, CLIENT)?;
    // While one worker runs, the processes that others leave behind stay, and with them their sessions.
    let (first, _) = told(&mail, "alice", "leaving")?;
    eventually("there are too many sessions", || {
        Ok(told(&mail, "alice", "leaving").is_err())
    })?;
    // Sixteen beyond the `connections` of the policy.
    let reason = "PAM opens no session: processes left behind keep 18 of the user's open";
    assert!(
        mail.keeper.wait_log(reason, PATIENCE)?,
        "{}",
        mail.keeper.log()?
    );
    told(&mail, "bob", "leaving")?;
    drop(first);
    eventually("alice is served again", || {
        Ok(told(&mail, "alice", "leaving").is_ok())
    })
}
