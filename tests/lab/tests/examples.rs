//! The examples: the difference that the document shows, running servers and clients, and the Python
//! package's own tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use usher_lab::{Host, Lab, Mail, Output, PATIENCE, Running};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The path of the Python server and its package in a host.
const PYTHON: &str = "/var/lib/calendar";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder to which cargo writes libraries and programs.
fn built() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let test = std::env::current_exe()?;
    let built = test.parent().and_then(Path::parent);
    Ok(built.ok_or("this test is nowhere")?.to_path_buf())
}

#[test]
fn the_echo_servers_differ_by_the_documents_four_lines() -> Outcome {
    let output = Command::new("diff")
        .args(["-u", "--label", "plain.c", "--label", "echo.c"])
        .args(["plain.c", "echo.c"])
        .current_dir(root().join("examples/echo"))
        .output()?;
    let difference = String::from_utf8(output.stdout)?;
    let document = fs::read_to_string(root().join("docs/writing-a-service.md"))?;
    assert!(
        document.contains(&format!("```diff\n{difference}```\n")),
        "docs/writing-a-service.md does not show this:\n{difference}"
    );
    let lines = |sign: &str, header: &str| {
        let changed = difference.lines().filter(|line| line.starts_with(sign));
        changed
            .filter(|line| !line.starts_with(header))
            .map(|line| line[1..].trim().to_owned())
            .collect::<Vec<_>>()
    };
    let (new, old) = (lines("+", "+++"), lines("-", "---"));
    let (include, calls): (Vec<_>, Vec<_>) =
        new.iter().partition(|line| line.starts_with("#include"));
    assert_eq!(
        (include.len(), calls.len(), old.len()),
        (1, 4, 2),
        "{new:?} for {old:?}"
    );
    Ok(())
}

/// Compiles a C program of `examples/echo` to `place`.
fn compile(source: &str, place: &Path) -> Outcome {
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("include"))
        .arg("-o")
        .arg(place)
        .arg(root().join("examples/echo").join(source))
        .arg("-L")
        .arg(built()?)
        .args(["-Wl,--as-needed", "-lusher"])
        .status()?;
    assert!(compiled.success(), "{source} is not compiled");
    Ok(())
}

/// Connects to the echo server, which may still be starting.
fn echo(from: &Host, to: &Host) -> Result<Running, Box<dyn std::error::Error>> {
    let address = format!("TCP:{}:7", to.ipv4());
    let begun = Instant::now();
    loop {
        let mut connection = from.spawn(["socat", "STDIO", &address])?;
        connection.write("are you there?\n")?;
        match connection.read_past("\n", PATIENCE) {
            Ok(answer) if answer == "are you there?\n" => return Ok(connection),
            answer if begun.elapsed() > PATIENCE => return Err(format!("{answer:?}").into()),
            _ => {}
        }
    }
}

#[test]
fn the_plain_echo_server_serves_connections_side_by_side() -> Outcome {
    let lab = Lab::new()?;
    let (laptop, mailhost) = (lab.host("laptop")?, lab.host("mailhost")?);
    compile("plain.c", &mailhost.path("/var/lib/plain"))?;
    let _server = mailhost.spawn(["/var/lib/plain"])?;
    let mut first = echo(&laptop, &mailhost)?;
    let mut second = echo(&laptop, &mailhost)?;
    for word in ["one\n", "two\n"] {
        for connection in [&mut first, &mut second] {
            connection.write(word)?;
            assert_eq!(connection.read_past("\n", PATIENCE)?, word);
        }
    }
    Ok(())
}

#[test]
fn the_echo_server_says_why_it_does_not_start_without_usher() -> Outcome {
    let lab = Lab::new()?;
    let mailhost = lab.host("mailhost")?;
    compile("echo.c", &mailhost.path("/var/lib/echo"))?;
    let server = mailhost
        .command(["/var/lib/echo"])
        .environment("LD_LIBRARY_PATH", "/run/lab/bin")
        .run()?;
    assert_eq!(server.status.code(), Some(1), "{server:?}");
    let why = "usher_set_accept_mode: Network is down";
    assert!(server.stderr.contains(why), "{server:?}");
    Ok(())
}

/// The mail topology with a calendar service: `program` is the statement's words.
fn with_calendar(program: &str) -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    let server = format!(
        "service calendar {{ program {program}; listen 5231; style connection; users mail; \
         hosts laptop; }}\n"
    );
    let client = "client calendar { users mail; service calendar at mailhost port 5231; }\n";
    for (host, policy) in [(&mail.mailhost, server.as_str()), (&mail.laptop, client)] {
        host.write("/etc/usher/policy.d/calendar.policy", policy)?;
        host.run(["usher", "policy", "apply"])?;
    }
    Ok(mail)
}

/// Runs a command of the client as `user`.
fn calendar(
    mail: &Mail,
    user: &str,
    arguments: &[&str],
    input: &str,
) -> Result<Output, Box<dyn std::error::Error>> {
    let command = ["calendar", "--host", "mailhost"];
    let command = command.iter().chain(arguments).copied();
    let command = mail.laptop.command(command).environment("TZ", "UTC");
    Ok(command.user(user).input(input).run()?)
}

fn said(
    mail: &Mail,
    user: &str,
    arguments: &[&str],
    input: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let output = calendar(mail, user, arguments, input)?;
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    Ok(output.stdout)
}

/// Summaries and days of `user`'s events in January 2026.
fn january(mail: &Mail, user: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let json = said(
        mail,
        user,
        &["view", "--from", "2026-01-01", "--days", "31", "--json"],
        "",
    )?;
    let events: Vec<serde_json::Value> = serde_json::from_str(&json)?;
    let text = |event: &serde_json::Value, name: &str| {
        let text = event[name].as_str().map(str::to_owned);
        text.ok_or_else(|| format!("no {name} in {json}"))
    };
    let mut found = Vec::new();
    for event in &events {
        found.push(format!(
            "{} {}",
            text(event, "summary")?,
            &text(event, "start")?[8..10]
        ));
    }
    Ok(found)
}

fn invitation(method: &str, sequence: u32, summary: &str) -> String {
    format!(
        "From: carol@example.org\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/calendar; method={method}; charset=utf-8\r\n\r\n\
         BEGIN:VCALENDAR\r\nVERSION:2.0\r\nMETHOD:{method}\r\nBEGIN:VEVENT\r\n\
         UID:lunch@example.org\r\nSEQUENCE:{sequence}\r\nSUMMARY:{summary}\r\n\
         ORGANIZER:mailto:carol@example.org\r\nDTSTART:20260107T120000Z\r\n\
         DURATION:PT1H\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
}

/// Runs the clients with any server.
fn the_clients_work(mail: &Mail) -> Outcome {
    let events = "BEGIN:VCALENDAR\nVERSION:2.0\nBEGIN:VEVENT\nUID:hive\nSUMMARY:Hive\n\
        DTSTART:20260105T120000Z\nDURATION:PT1H\nRRULE:FREQ=WEEKLY;COUNT=2\nEND:VEVENT\n\
        END:VCALENDAR\n";
    assert_eq!(
        said(mail, "alice", &["add", "--calendar", "work"], events)?,
        "hive\n"
    );
    assert_eq!(january(mail, "alice")?, ["Hive 05", "Hive 12"]);
    let agenda = said(
        mail,
        "alice",
        &["view", "--from", "2026-01-05", "--days", "1"],
        "",
    )?;
    assert_eq!(
        agenda,
        "Monday, 5 January 2026\n  12:00-13:00  Hive  [work]\n"
    );
    // The file belongs to her alone, and bob has no calendars.
    let file = mail
        .mailhost
        .run_as("alice", ["stat", "-c", "%U %a", ".calendars/work.ics"])?;
    assert_eq!(file.stdout, "alice 600\n");
    assert!(january(mail, "bob")?.is_empty());

    for (message, expected) in [
        (invitation("REQUEST", 0, "Lunch"), Some("Lunch 07")),
        (
            invitation("REQUEST", 2, "Long lunch"),
            Some("Long lunch 07"),
        ),
        (invitation("CANCEL", 2, "Long lunch"), None),
    ] {
        said(mail, "bob", &["feed"], &message)?;
        let expected: Vec<&str> = expected.into_iter().collect();
        assert_eq!(january(mail, "bob")?, expected);
    }
    // Receiving a message twice is no failure; a stranger's cancellation is one.
    said(mail, "bob", &["feed"], &invitation("CANCEL", 2, ""))?;
    said(mail, "bob", &["feed"], &invitation("REQUEST", 0, "Lunch"))?;
    let forged = invitation("CANCEL", 9, "").replace("mailto:carol", "mailto:mallory");
    let forged = calendar(mail, "bob", &["feed"], &forged)?;
    assert_eq!(forged.status.code(), Some(65), "{forged:?}");
    assert_eq!(january(mail, "bob")?, ["Lunch 07"]);

    let now = mail
        .mailhost
        .run(["date", "-u", "-d", "5 minutes", "+%Y%m%dT%H%M%SZ"])?
        .stdout;
    let soon = format!(
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:soon\nSUMMARY:Soon\nDTSTART:{}\nEND:VEVENT\n\
         END:VCALENDAR\n",
        now.trim()
    );
    said(mail, "alice", &["add"], &soon)?;
    let reminded = said(mail, "alice", &["remind", "--once"], "")?;
    assert!(
        reminded.ends_with(" Soon\n") && reminded.lines().count() == 1,
        "{reminded}"
    );
    assert_eq!(
        said(mail, "alice", &["remind", "--once", "--before", "1"], "")?,
        ""
    );

    assert_eq!(said(mail, "alice", &["remove", "hive"], "")?, "work\n");
    assert!(january(mail, "alice")?.is_empty());
    // Not permitted by mailhost's policy: a mail system would try again later.
    let carol = calendar(mail, "carol", &["view"], "")?;
    assert_eq!(carol.status.code(), Some(75), "{carol:?}");
    Ok(())
}

#[test]
fn each_user_has_calendars_of_their_own_over_the_server_in_rust() -> Outcome {
    the_clients_work(&with_calendar(
        "\"/run/lab/bin/calendar-server\" \"connection\"",
    )?)
}

#[test]
fn the_python_server_gives_each_user_their_own_calendars() -> Outcome {
    let program = format!(
        "\"/usr/bin/python3\" \"-P\" \"{PYTHON}/server\" \"connection\"; \
         environment \"PYTHONPATH={PYTHON}\""
    );
    let mail = with_calendar(&program)?;
    let server = fs::read_to_string(root().join("examples/calendar.py"))?;
    mail.mailhost.write(format!("{PYTHON}/server"), server)?;
    for module in ["__init__.py", "_calls.py", "_library.py"] {
        let text = fs::read_to_string(root().join("python/usher/usher").join(module))?;
        mail.mailhost
            .write(format!("{PYTHON}/usher/{module}"), text)?;
    }
    the_clients_work(&mail)
}

#[test]
fn the_python_package_passes_its_own_tests() -> Outcome {
    let tests = Command::new("python3")
        .args(["-m", "unittest", "discover", "-s", "tests", "-t", "."])
        .current_dir(root().join("python/usher"))
        .env("USHER_LIBRARY", built()?.join("libusher.so"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()?;
    let said = String::from_utf8_lossy(&tests.stderr);
    assert!(tests.status.success() && said.contains("OK"), "{said}");
    Ok(())
}
