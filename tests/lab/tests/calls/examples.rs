//! The examples that use the calls.

use std::fs;
use std::path::{Path, PathBuf};

use crate::service::{Result, as_account, fenced};
use usher_lab::{ALICE, BOB, Mail, PATIENCE, Running, eventually};

const ECHO: &str = include_str!("../../../../examples/echo/echo.c");
/// The path of the Python server and its package on mailhost.
const PYTHON: &str = "/var/lib/calendar";

fn connect(mail: &Mail, user: &str, service: &str) -> Result<Running> {
    Ok(mail
        .laptop
        .command(["usher", "connect", service])
        .user(user)
        .spawn()?)
}

fn ask(connection: &mut Running, line: &str) -> Result<String> {
    connection.write(format!("{line}\n"))?;
    Ok(connection.read_past("\n", PATIENCE)?)
}

/// The number of the user's processes on mailhost with `word` in their command.
fn processes(mail: &Mail, uid: u32, word: &str) -> Result<usize> {
    let processes = mail.mailhost.processes()?;
    let theirs = processes
        .iter()
        .filter(|process| process.uid == uid && process.command.contains(word));
    Ok(theirs.count())
}

#[test]
fn four_lines_make_the_echo_server_serve_as_its_users() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    mail.mailhost.compile_c(ECHO, "/var/lib/echo")?;
    let _server = as_account(&mail, &["/var/lib/echo", "7001"])?;
    let connect = |user| connect(&mail, user, "mailhost:single");
    let (mut first, mut second) = (connect("alice")?, connect("alice")?);
    let mut bob = connect("bob")?;
    for connection in [&mut first, &mut bob, &mut second] {
        assert_eq!(ask(connection, "are you there?")?, "are you there?\n");
    }
    assert_eq!(processes(&mail, ALICE.mailhost_uid, "/var/lib/echo")?, 2);
    assert_eq!(processes(&mail, BOB.mailhost_uid, "/var/lib/echo")?, 1);
    drop(first);
    eventually("the process ends with its connection", || {
        Ok(processes(&mail, ALICE.mailhost_uid, "/var/lib/echo")? == 1)
    })
}

/// Checks either calendar server; `word` is in its command.
fn one_process_serves_all_applications_of_a_user(mail: &Mail, word: &str) -> Result {
    const ADD: &str = r#"{"ask":"add","calendar":"work","text":"BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\nDTSTART:20260105T120000Z\nEND:VEVENT\nEND:VCALENDAR\n"}"#;
    let (alice, bob) = (ALICE.mailhost_uid, BOB.mailhost_uid);
    mail.mailhost.run_as("alice", ["rm", "-rf", ".calendars"])?;
    let connect = |user| connect(mail, user, "mailhost:calls");
    let (mut agenda, mut feed) = (connect("alice")?, connect("alice")?);
    let empty = ask(&mut agenda, r#"{"ask":"calendars"}"#)?;
    let empty: serde_json::Value = serde_json::from_str(&empty)?;
    let version = empty["version"].as_str().ok_or("no version")?;
    // One waits while the other changes something: neither blocks the other.
    agenda.write(format!(
        "{{\"ask\":\"wait\",\"version\":\"{version}\",\"seconds\":300}}\n"
    ))?;
    let added: serde_json::Value = serde_json::from_str(&ask(&mut feed, ADD)?)?;
    assert_eq!(added["uids"][0], "1", "{added}");
    let changed = agenda.read_past("\n", PATIENCE)?;
    let changed: serde_json::Value = serde_json::from_str(&changed)?;
    assert!(
        changed["version"].is_string() && changed["version"] != version,
        "{changed} after {version}"
    );
    assert_eq!(processes(mail, alice, word)?, 1);

    let mut his = connect("bob")?;
    let his: serde_json::Value = serde_json::from_str(&ask(&mut his, r#"{"ask":"calendars"}"#)?)?;
    assert_eq!(his["calendars"], serde_json::json!([]), "{his}");
    assert_eq!(
        (processes(mail, alice, word)?, processes(mail, bob, word)?),
        (1, 1)
    );
    let file = mail
        .mailhost
        .run_as("alice", ["stat", "-c", "%U %G %a", ".calendars/work.ics"])?;
    assert_eq!(file.stdout, "alice alice 600\n");
    // The clients, too.
    let view = [
        "calendar",
        "--host",
        "mailhost",
        "--service",
        "calls",
        "view",
    ];
    let view = view
        .iter()
        .chain(&["--from", "2026-01-05", "--json"])
        .copied();
    let view = mail
        .laptop
        .command(view)
        .environment("TZ", "UTC")
        .user("alice");
    let shown: serde_json::Value = serde_json::from_str(&view.succeed()?.stdout)?;
    assert_eq!(shown[0]["uid"], "1", "{shown}");
    Ok(())
}

#[test]
fn the_calendar_server_has_one_process_for_each_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let server = ["/run/lab/bin/calendar-server", "serve", "--port", "7000"];
    let _server = as_account(&mail, &[&server[..], &["--idle", "2"]].concat())?;
    // A worker is a new instance of the program.
    one_process_serves_all_applications_of_a_user(&mail, "worker")
}

#[test]
fn the_calendar_server_in_python_has_one_process_for_each_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let server = fs::read_to_string(root.join("examples/calendar.py"))?;
    mail.mailhost.write(format!("{PYTHON}/server"), server)?;
    for module in ["__init__.py", "_calls.py", "_library.py"] {
        let text = fs::read_to_string(root.join("python/usher/usher").join(module))?;
        mail.mailhost
            .write(format!("{PYTHON}/usher/{module}"), text)?;
    }
    let path = format!("PYTHONPATH={PYTHON}");
    let program = format!("{PYTHON}/server");
    let words = [
        "env",
        &path,
        "/usr/bin/python3",
        "-P",
        &program,
        "serve",
        "7000",
    ];
    let _server = as_account(&mail, &words)?;
    one_process_serves_all_applications_of_a_user(&mail, &program)
}
