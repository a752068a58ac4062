//! Attackers: Python programs that send the keeper their own packets, and the connections that they
//! attack.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::service::{Result, as_account};
use usher_lab::{ALICE, Host, Mail, PATIENCE, Running};

/// The common beginning of hostile programs.
pub const HOSTILE: &str = include_str!("../../programs/hostile.py");

/// The script runs in a child, because the keeper moves a settling process into its user's cgroup,
/// and the lab ends a command by the command's cgroup, in which its first process stays.
const IN_CHILD: &str = "
if os.fork():
    os.wait()
    sys.exit()
";

/// Writes a program to a file of its own on the host, so that its traceback names lines.
fn write(host: &Host, program: &str) -> Result<String> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = format!("/var/lib/attackers/{count}.py");
    host.write(&path, program)?;
    Ok(path)
}

/// A Python program as a user of the host.
pub fn run_as(host: &Host, user: &str, program: &str) -> Result<Running> {
    let path = write(host, program)?;
    let command = host.command(["python3", &path]);
    Ok(match user {
        "root" => command.spawn()?,
        user => command.user(user).spawn()?,
    })
}

/// A hostile process of the service's account.
pub fn hostile(mail: &Mail, script: &str) -> Result<Running> {
    let path = write(&mail.mailhost, &format!("{HOSTILE}{IN_CHILD}{script}"))?;
    as_account(mail, &["python3", &path])
}

/// A process of mailhost with all ids of this user; root's for `root`.
pub fn process_of(mail: &Mail, user: &str, script: &str) -> Result<Running> {
    run_as(&mail.mailhost, user, &format!("{HOSTILE}\n{script}"))
}

/// A user's connection that waits to be served.
pub fn knock(mail: &Mail, user: &str) -> Result<Running> {
    Ok(mail
        .laptop
        .command(["usher", "connect", "mailhost:calls"])
        .user(user)
        .spawn()?)
}

/// Requires that the process prints exactly these lines next.
#[track_caller]
pub fn says(process: &mut Running, lines: &[&str]) -> Result {
    for line in lines {
        let said = process.read_past("\n", PATIENCE)?;
        assert_eq!(said.trim_end(), *line, "{}", process.stderr()?);
    }
    Ok(())
}

/// Requires that a process with all four of a user's ids serves the connection, and that it works.
#[track_caller]
pub fn served_as(connection: &mut Running, uid: u32) -> Result {
    let greeting = connection.read_past("\n", PATIENCE)?;
    let ids = format!("for {uid} {uid} {uid} {uid}\n");
    assert!(greeting.ends_with(&ids), "{greeting}");
    connection.write("are you there?\n")?;
    assert_eq!(connection.read_past("\n", PATIENCE)?, "are you there?\n");
    Ok(())
}

/// Alice's connection, the process that serves it, and that process's number, its descriptor of
/// the connection and one of a pipe.
pub fn live_connection(mail: &Mail) -> Result<(Running, Running, String)> {
    let mut alice = knock(mail, "alice")?;
    let mut service = hostile(
        mail,
        "_, reservation, _ = reserve()
_, queue = settle(reservation)
allow_tracing()
serve_and_tell(queue)",
    )?;
    let place = service.read_past("\n", PATIENCE)?.trim_end().to_owned();
    served_as(&mut alice, ALICE.mailhost_uid)?;
    Ok((alice, service, place))
}
