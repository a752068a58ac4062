//! A service whose connections carry tokens, on the mail topology: the greeter at port 7000.
#![allow(dead_code, reason = "each test program uses its part")]

use std::error::Error;

use usher_lab::{Command, LIBRARY_PATH, Lab, Mail, Role, eventually};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const CONNECTS: &str = include_str!("../../programs/connects.c");

/// A service that greets every connection with its user's number and goes on.
const GREETER: &str = "
import os, socket
listener = socket.socket(fileno=3)
listener.setblocking(True)
while True:
    connection, _ = listener.accept()
    connection.sendall(f'{os.getuid()}\\n'.encode())
    connection.close()
";

/// Laptop's policy for the greeter, for programs that ask.
const CLIENTS_POLICY: &str =
    "client greeter { users mail; service greeter at mailhost port 7000; }\n";

/// The mail topology with the greeter at port 7000, and a program that connects to it.
pub fn topology() -> Result<Mail> {
    let mail = topology_for(CLIENTS_POLICY)?;
    mail.laptop.compile_c(CONNECTS, "/var/lib/connects")?;
    Ok(mail)
}

/// The mail topology with the greeter at port 7000 and this policy of laptop's for it.
pub fn topology_for(clients_policy: &str) -> Result<Mail> {
    let mail = Lab::mail()?;
    mail.mailhost.write("/var/lib/greeter.py", GREETER)?;
    let policy = "service greeter { program \"/usr/bin/python3\" \"/var/lib/greeter.py\"; listen 7000; \
         style user; users mail; hosts laptop; }\n";
    mail.add_policies("greeter", policy, clients_policy)?;
    Ok(mail)
}

/// Each session's user, and the elements that announcements and tokens have used.
pub fn sessions(mail: &Mail) -> Result<Vec<(String, u64, Option<u64>)>> {
    let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
    let view: serde_json::Value = serde_json::from_str(&who)?;
    let sessions = view["sessions"].as_array().ok_or("no sessions")?;
    sessions
        .iter()
        .map(|session| {
            let user = session["user"].as_str().ok_or("no user")?;
            let used = session["used"].as_u64().ok_or("no number")?;
            Ok((user.to_owned(), used, session["tokens"].as_u64()))
        })
        .collect()
}

/// Makes its connections once, and once more for each line that it reads.
pub fn connects(mail: &Mail, user: &str, threads: &str, count: &str) -> Command {
    mail.laptop
        .command(["/var/lib/connects", "mailhost", "greeter", threads, count])
        .environment("LD_LIBRARY_PATH", LIBRARY_PATH)
        .user(user)
}

/// This many connections of the user, by this many threads of one process.
pub fn connect(mail: &Mail, user: &str, threads: u32, count: u32) -> Result {
    let (threads_text, count_text) = (threads.to_string(), count.to_string());
    let output = connects(mail, user, &threads_text, &count_text).run()?;
    let expected = format!("{} connections\n", threads * count);
    assert_eq!(output.stdout, expected, "{}", output.stderr);
    Ok(())
}

/// Waits until the signer has this many tickets.
pub fn has_ticket(mail: &Mail, count: u64) -> Result {
    eventually("the signer has the ticket", || {
        Ok(mail.laptop.number(Role::Signer, "tickets")? == count)
    })
}
