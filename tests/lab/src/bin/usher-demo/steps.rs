//! The demo's steps, in their order.

use std::net::IpAddr;
use std::time::Instant;

use serde_json::Value;
use usher_lab::{ALICE, BOB, CAROL, Lab, LabError, Mail, PATIENCE, Process, Running, User};

use crate::DemoError;
use crate::protection;
use crate::tell::Teller;

type Done = Result<(), DemoError>;

/// A TCP connection made by the shell alone, on standard input and output.
pub(crate) const PLAIN: &str = r#"exec 3<>"/dev/tcp/$1/$2" || exit 1; cat <&3 & cat >&3; wait"#;

const MBSYNC: &str = "IMAPAccount mailhost
Host mailhost
Port 143
User bob
Pass no-password-at-all
SSLType None
AuthMechs LOGIN

IMAPStore remote
Account mailhost

MaildirStore local
Path ~/Mail/
Inbox ~/Mail/INBOX
SubFolders Verbatim

Channel mail
Far :remote:
Near :local:
Patterns INBOX
Create Near
SyncState *
";

/// Runs all steps; the lab is gone at the end.
pub(crate) fn all(teller: &Teller, lab: Lab) -> Done {
    let mail = hosts(teller, lab)?;
    if let Err(error) = with(teller, &mail) {
        logs(&mail);
        return Err(error);
    }
    removal(teller, mail)
}

fn with(teller: &Teller, mail: &Mail) -> Done {
    let sessions = two_users(teller, mail)?;
    let second = second_connection(teller, mail)?;
    stranger(teller, mail)?;
    not_permitted(teller, mail)?;
    drop((sessions, second));
    curl(teller, mail)?;
    mbsync(teller, mail)?;
    login(teller, mail)?;
    protection::shown(teller, mail)
}

/// Prints the last lines of the daemons' logs, to explain a failure: the logs vanish with the hosts.
fn logs(mail: &Mail) {
    for daemon in [
        &mail.keeper,
        &mail.verifier,
        &mail.signer,
        &mail.courier,
        &mail.proxy,
    ] {
        match daemon.log() {
            Ok(log) => {
                let lines: Vec<_> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(12)..];
                eprintln!("\n--- log of the {}\n{}", daemon.name(), last.join("\n"));
            }
            // Ctrl-C has removed the lab.
            Err(_) => return,
        }
    }
}

fn hosts(teller: &Teller, lab: Lab) -> Result<Mail, DemoError> {
    teller.heading("Hosts, users, keys, policy, daemons");
    let begin = Instant::now();
    let mail = Mail::on(lab)?;
    for host in [&mail.laptop, &mail.mailhost, &mail.stranger] {
        teller.fact(
            &format!("{}: {} and {}", host.name(), host.ipv4(), host.ipv6()),
            None,
        );
    }
    teller.command("root", "mailhost", "usher policy check");
    teller.quote(&mail.mailhost.run(["usher", "policy", "check"])?.stdout);
    teller.command("root", "laptop", "usher policy check");
    teller.quote(&mail.laptop.run(["usher", "policy", "check"])?.stdout);
    let dovecot = imap_processes(&mail)?;
    teller.demand(
        "no process of dovecot runs on mailhost: imap is started when a user connects",
        dovecot.is_empty(),
        None,
        || format!("{dovecot:?}"),
    )?;
    teller.fact(
        "alice and bob have accounts here and there, Ed25519 keys by ssh-keygen, a message each; \
         carol too, but mailhost's policy does not permit her",
        Some(begin.elapsed()),
    );
    Ok(mail)
}

/// alice and bob each get a process of their own.
fn two_users(teller: &Teller, mail: &Mail) -> Result<Vec<Running>, DemoError> {
    teller.heading("Each user is served by a process that runs as that user");
    let mut sessions = Vec::new();
    for user in [ALICE, BOB] {
        sessions.push(connect(teller, mail, user)?);
    }
    let processes = imap_processes(mail)?;
    for user in [ALICE, BOB] {
        let own: Vec<_> = of(&processes, user);
        teller.demand(
            format!(
                "{} (uid {} on laptop) is served by imap {} with uid {}",
                user.name,
                user.laptop_uid,
                numbers(&own),
                user.mailhost_uid
            ),
            own.len() == 1,
            None,
            || format!("{processes:?}"),
        )?;
    }
    teller.demand("nobody else is served", processes.len() == 2, None, || {
        format!("{processes:?}")
    })?;
    Ok(sessions)
}

/// A user's next connection costs no signature and stays with the user.
fn second_connection(teller: &Teller, mail: &Mail) -> Result<Running, DemoError> {
    teller.heading("A user's second connection is taken by that user's queue");
    let connection = connect(teller, mail, ALICE)?;
    let who = mail.mailhost.run(["usher", "who", "--json"])?.stdout;
    let who: Value = serde_json::from_str(&who)?;
    teller.command("root", "mailhost", "usher who");
    teller.quote(&mail.mailhost.run(["usher", "who"])?.stdout);
    for (user, connections) in [(ALICE, 2), (BOB, 1)] {
        let sessions: Vec<&Value> = who["sessions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|session| session["user"] == user.name)
            .collect();
        let established = |session: &Value| {
            let rows = session["connections"].as_array().into_iter().flatten();
            rows.filter(|row| row["state"] == "established").count()
        };
        let as_claimed = sessions.len() == 1
            && sessions[0]["uid"] == user.mailhost_uid
            && established(sessions[0]) == connections;
        teller.demand(
            format!(
                "{}: one session, one signature, {connections} connection(s)",
                user.name
            ),
            as_claimed,
            None,
            || format!("{who:#}"),
        )?;
    }
    let processes = imap_processes(mail)?;
    let own = of(&processes, ALICE);
    teller.demand(
        format!(
            "alice's connections are with imap {}, all with her uid",
            numbers(&own)
        ),
        own.len() == 2 && of(&processes, BOB).len() == 1 && processes.len() == 3,
        None,
        || format!("{processes:?}"),
    )?;
    Ok(connection)
}

/// An unannounced connection is reset, and no program sees it.
fn stranger(teller: &Teller, mail: &Mail) -> Done {
    teller.heading("A connection without an authenticated user is reset");
    let before = imap_processes(mail)?;
    let addresses = [
        IpAddr::from(mail.mailhost.ipv4()),
        IpAddr::from(mail.mailhost.ipv6()),
    ];
    for (host, user) in [(&mail.stranger, "root"), (&mail.laptop, ALICE.name)] {
        for address in addresses {
            let address = address.to_string();
            teller.command(
                user,
                host.name(),
                &format!("connect {address} 143   # without Usher"),
            );
            let mut command = host.command(["bash", "-c", PLAIN, "bash", &address, "143"]);
            if user != "root" {
                command = command.user(user);
            }
            let output = command.limit(PATIENCE).run()?;
            teller.demand(
                "Connection refused",
                !output.status.success() && output.stderr.contains("Connection refused"),
                Some(output.elapsed),
                || format!("{}\n{}{}", output.status, output.stdout, output.stderr),
            )?;
        }
    }
    let after = imap_processes(mail)?;
    teller.demand(
        "no process was started or ended by it",
        before == after,
        None,
        || format!("{before:?}\n{after:?}"),
    )
}

/// An authenticated user without permission is refused, with the reason.
fn not_permitted(teller: &Teller, mail: &Mail) -> Done {
    teller.heading("A user without permission is refused");
    teller.command(CAROL.name, "laptop", "usher connect mailhost:imap");
    let output = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user(CAROL.name)
        .limit(PATIENCE)
        .run()?;
    teller.quote(&output.stderr);
    teller.demand(
        "carol is refused, with the reason",
        !output.status.success() && output.stdout.is_empty() && output.stderr.contains("refused"),
        Some(output.elapsed),
        || format!("{}\n{}{}", output.status, output.stdout, output.stderr),
    )?;
    let mut log = mail.verifier.log()?;
    log += &mail.keeper.log()?;
    let line = log
        .lines()
        .find(|line| line.contains(CAROL.name))
        .unwrap_or_default();
    teller.quote(line);
    teller.demand(
        "mailhost's log says so, too",
        !line.is_empty(),
        None,
        || log.clone(),
    )?;
    let processes = imap_processes(mail)?;
    teller.demand(
        "no process runs for her",
        of(&processes, CAROL).is_empty(),
        None,
        || format!("{processes:?}"),
    )
}

/// An unmodified program, through the proxy.
fn curl(teller: &Teller, mail: &Mail) -> Done {
    teller.heading("Unmodified mail programs: curl");
    for user in [ALICE, BOB] {
        let login = format!("{}:no-password-at-all", user.name);
        let url = "imap://mailhost/INBOX;UID=1";
        teller.command(user.name, "laptop", &format!("curl --user {login} '{url}'"));
        let output = mail
            .laptop
            .command(["curl", "--silent", "--show-error", "--user", &login, url])
            .user(user.name)
            .limit(PATIENCE)
            .succeed()?;
        teller.quote(subject(&output.stdout));
        teller.demand(
            format!("{} has read {}'s message", user.name, user.name),
            output.stdout.contains(user.subject),
            Some(output.elapsed),
            || output.stdout.clone(),
        )?;
    }
    teller.command(
        ALICE.name,
        "laptop",
        "curl --user bob:... 'imap://mailhost/INBOX;UID=1'",
    );
    let arguments = [
        "--silent",
        "--show-error",
        "--user",
        "bob:no-password-at-all",
    ];
    let output = mail
        .laptop
        .command(
            ["curl"]
                .iter()
                .chain(&arguments)
                .chain(&["imap://mailhost/INBOX;UID=1"]),
        )
        .user(ALICE.name)
        .limit(PATIENCE)
        .run()?;
    teller.quote(&output.stderr);
    teller.demand(
        "alice cannot say that she is bob: the kernel says whose connection it is",
        !output.status.success() && !output.stdout.contains(BOB.subject),
        Some(output.elapsed),
        || format!("{}\n{}{}", output.status, output.stdout, output.stderr),
    )
}

/// Another unmodified program.
fn mbsync(teller: &Teller, mail: &Mail) -> Done {
    teller.heading("Unmodified mail programs: mbsync");
    let begin = "umask 077; mkdir -p Mail && cat >.mbsyncrc";
    mail.laptop
        .command(["sh", "-c", begin])
        .user(BOB.name)
        .input(MBSYNC)
        .succeed()?;
    teller.command(BOB.name, "laptop", "mbsync --all");
    let output = mail
        .laptop
        .command(["mbsync", "--all"])
        .user(BOB.name)
        .limit(PATIENCE)
        .succeed()?;
    let fetched = mail
        .laptop
        .run_as(BOB.name, ["sh", "-c", "cat Mail/INBOX/*/*"])?
        .stdout;
    teller.quote(subject(&fetched));
    teller.demand(
        "bob's message is in a Maildir of his on laptop",
        fetched.contains(BOB.subject) && !fetched.contains(ALICE.subject),
        Some(output.elapsed),
        || format!("{fetched}\n{}{}", output.stdout, output.stderr),
    )
}

/// Clients that insist on LOGIN are answered by the proxy.
fn login(teller: &Teller, mail: &Mail) -> Done {
    teller.heading("A LOGIN is answered on laptop; no password goes anywhere");
    let say = "a1 LOGIN alice no-password-at-all\r\n";

    teller.command(ALICE.name, "laptop", "connect mailhost 143   # the proxy");
    let mut proxied = mail
        .laptop
        .command(["bash", "-c", PLAIN, "bash", "mailhost", "143"])
        .user(ALICE.name)
        .spawn()?;
    let greeting = proxied.read_past("* ", PATIENCE)?;
    teller.quote(&greeting);
    let begin = Instant::now();
    proxied.write(say)?;
    let answer = proxied.read_past("a1 ", PATIENCE)?;
    let took = begin.elapsed();
    teller.quote(&format!("> {say}< {answer}"));
    teller.demand(
        "the proxy takes any password",
        answer.contains("a1 OK"),
        Some(took),
        || answer.clone(),
    )?;
    proxied.write("a2 STATUS INBOX (MESSAGES)\r\n")?;
    let status = proxied.read_past("a2 ", PATIENCE)?;
    teller.demand(
        "after it she speaks with her own imap process",
        status.contains("MESSAGES 1") && status.contains("a2 OK"),
        None,
        || status.clone(),
    )?;
    drop(proxied);

    // The twin: mailhost's own answer to a LOGIN.
    let mut direct = connect(teller, mail, ALICE)?;
    direct.write(say)?;
    let answer = direct.read_past("a1 ", PATIENCE)?;
    teller.quote(&format!("> {say}< {answer}"));
    teller.demand(
        "mailhost's imap knows no LOGIN: it was not the one that answered",
        answer.contains("a1 BAD") || answer.contains("a1 NO"),
        None,
        || answer.clone(),
    )
}

fn removal(teller: &Teller, mail: Mail) -> Done {
    teller.heading("Removal");
    let begin = Instant::now();
    let group = mail.laptop.cgroup().to_owned();
    let anchors = [
        mail.laptop.anchor(),
        mail.mailhost.anchor(),
        mail.stranger.anchor(),
    ];
    drop(mail);
    let left: Vec<_> = anchors
        .iter()
        .map(|anchor| format!("/proc/{anchor}"))
        .filter(|process| std::path::Path::new(process).exists())
        .collect();
    teller.demand(
        "hosts, processes, mounts, programs in the kernel and cgroups are gone",
        left.is_empty() && !group.exists(),
        Some(begin.elapsed()),
        || format!("{left:?} {}", group.display()),
    )
}

/// Connects without the proxy, and waits for the server's greeting.
pub(crate) fn connect(teller: &Teller, mail: &Mail, user: User) -> Result<Running, DemoError> {
    teller.command(user.name, "laptop", "usher connect mailhost:imap");
    let begin = Instant::now();
    let mut connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user(user.name)
        .spawn()?;
    let greeting = connection.read_past("* ", PATIENCE)?;
    let took = begin.elapsed();
    let expected = format!("Logged in as {}", user.name);
    teller.demand(
        format!("* PREAUTH ... {expected}"),
        greeting.starts_with("* PREAUTH") && greeting.trim_end().ends_with(&expected),
        Some(took),
        || greeting.clone(),
    )?;
    Ok(connection)
}

/// The processes of dovecot on mailhost.
fn imap_processes(mail: &Mail) -> Result<Vec<Process>, LabError> {
    let mut processes = mail.mailhost.processes()?;
    processes.retain(|process| process.command.contains("dovecot") || process.name == "imap");
    Ok(processes)
}

fn of(processes: &[Process], user: User) -> Vec<&Process> {
    processes
        .iter()
        .filter(|process| process.uid == user.mailhost_uid)
        .collect()
}

fn numbers(processes: &[&Process]) -> String {
    let numbers: Vec<_> = processes
        .iter()
        .map(|process| process.pid.to_string())
        .collect();
    numbers.join(" and ")
}

fn subject(message: &str) -> &str {
    message
        .lines()
        .find(|line| line.starts_with("Subject:"))
        .unwrap_or_default()
}
