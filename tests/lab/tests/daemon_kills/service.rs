//! Five users on laptop, and a service on mailhost that reports each connection's user.

use std::error::Error;

use usher_lab::{Lab, Mail};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Greets with its user's number, and then echoes.
const SERVICE: &str = r#"
import os, socket, threading
listener = socket.socket(fileno=3)
listener.setblocking(True)
def serve(connection):
    with connection:
        try:
            connection.sendall(b"%d\n" % os.getuid())
            while data := connection.recv(4096):
                connection.sendall(data)
        except OSError:
            pass
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
"#;

/// A user's name, and its number on mailhost.
pub type Account = (&'static str, u32);

/// The users who may always use the service.
pub const USERS: [Account; 4] = [
    ("alice", 2001),
    ("bob", 2002),
    ("carol", 2003),
    ("dave", 2004),
];

/// The user who is disabled and enabled.
pub const ERIN: Account = ("erin", 2006);

/// The service's port.
pub const PORT: u16 = 7100;

/// The mail topology with the service `storm`, for all users, also by plain connect() and by the
/// proxy.
pub fn topology() -> Result<Mail> {
    let mail = Lab::mail()?;
    add_user(&mail, 1004, USERS[3])?;
    add_user(&mail, 1006, ERIN)?;
    mail.mailhost.write("/var/lib/storm.py", SERVICE)?;
    let users = "users storm { member alice, bob, carol, dave, erin; }";
    mail.mailhost.write(
        "/etc/usher/policy.d/storm.policy",
        format!(
            "{users}\nservice storm {{ program \"/usr/bin/python3\" \"/var/lib/storm.py\"; \
             listen {PORT}; style user; users storm; hosts laptop; }}\n"
        ),
    )?;
    mail.laptop.write(
        "/etc/usher/policy.d/storm.policy",
        format!(
            "{users}\nclient storm {{ users storm; service storm at mailhost port {PORT}; \
             programs any; }}\n"
        ),
    )?;
    mail.apply()?;
    Ok(mail)
}

fn add_user(mail: &Mail, laptop_uid: u32, (name, mailhost_uid): Account) -> Result {
    let (laptop, mailhost) = (&mail.laptop, &mail.mailhost);
    laptop.add_account(name, laptop_uid)?;
    mailhost.add_account(name, mailhost_uid)?;
    let (key, public) = (format!("/root/{name}"), format!("/root/{name}.pub"));
    mailhost.write(&public, laptop.make_key(&key)?)?;
    laptop.run(["usher", "user", "add", name, "--private-key", &key])?;
    mailhost.run(["usher", "user", "add", name, "--public-key", &public])?;
    Ok(())
}
