//! Shared by the tests of ssh-agents: alice, whose key is in her agent and not with the signer.
#![allow(dead_code, reason = "each test program uses its part")]

use std::error::Error;

use usher_lab::{Lab, Mail, Output, PATIENCE, Running, Signal, eventually};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The socket of a user's ssh-agent.
pub const SOCKET: &str = "agent.sock";
/// The key that the mail topology has made for each user.
pub const KEY: &str = ".ssh/id_ed25519";

pub fn socket(user: &str) -> String {
    format!("/home/{user}/{SOCKET}")
}

/// The mail topology, where alice signs by her agent.
pub fn topology() -> Result<Mail> {
    let mail = Lab::mail()?;
    register(&mail, "alice", "/home/alice/.ssh/id_ed25519.pub")?;
    Ok(mail)
}

/// From now on this key of the user's agent signs, and no key of the signer.
pub fn register(mail: &Mail, user: &str, public_key: &str) -> Result {
    mail.laptop
        .run(["usher", "user", "add", user, "--agent-key", public_key])?;
    Ok(())
}

/// The user's ssh-agent, with keys.
pub fn ssh_agent(mail: &Mail, user: &str, keys: &[&str]) -> Result<Running> {
    let socket = socket(user);
    let agent = mail
        .laptop
        .command(["ssh-agent", "-D", "-P", "/var/lib/*", "-a", &socket])
        .environment("SECURITY_KEY", format!("/home/{user}/device"))
        .user(user)
        .spawn()?;
    eventually("the agent listens", || {
        Ok(mail.laptop.path(&socket).exists())
    })?;
    for key in keys {
        add_key(mail, user, key)?;
    }
    Ok(agent)
}

pub fn add_key(mail: &Mail, user: &str, key: &str) -> Result {
    mail.laptop
        .command(["ssh-add", "-q", key])
        .environment("SSH_AUTH_SOCK", socket(user))
        .environment("SSH_SK_PROVIDER", "/var/lib/security_key.so")
        .user(user)
        .succeed()?;
    Ok(())
}

/// `usher agent`, once the signer has its loan.
pub fn lend(mail: &Mail, user: &str) -> Result<Running> {
    let before = loans(mail)?;
    let lender = lender(mail, user)?;
    eventually("the agent is lent", || Ok(loans(mail)? > before))?;
    Ok(lender)
}

/// `usher agent`.
pub fn lender(mail: &Mail, user: &str) -> Result<Running> {
    let lender = mail
        .laptop
        .command(["usher", "agent"])
        .environment("SSH_AUTH_SOCK", socket(user))
        .user(user)
        .spawn()?;
    Ok(lender)
}

/// The number of loans so far.
pub fn loans(mail: &Mail) -> Result<usize> {
    Ok(mail.signer.log()?.matches("an agent is lent").count())
}

/// Makes a user sign again, because the signer keeps sessions and loans in memory only.
pub fn forget_sessions(mail: &mut Mail) -> Result {
    mail.signer.kill(Signal::KILL)?;
    mail.signer.wait(PATIENCE)?;
    Ok(mail.signer.start()?)
}

pub fn connect(mail: &Mail, user: &str) -> Result<Output> {
    let output = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user(user)
        .input("a LOGOUT\r\n")
        .run()?;
    Ok(output)
}

pub fn served(mail: &Mail, user: &str) -> Result {
    let output = connect(mail, user)?;
    let greeting = format!("Logged in as {user}");
    assert!(output.stdout.contains(&greeting), "{output:?}");
    Ok(())
}

/// Requires that the user is refused with a reason, and returns its text.
pub fn refused(mail: &Mail, user: &str, reason: &str) -> Result<String> {
    let before = mail.signer.log()?.len();
    let output = connect(mail, user)?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let log = mail.signer.log()?;
    let told = format!("reason=\"{reason}\"");
    assert!(log[before..].contains(&told), "{reason} is not in\n{log}");
    Ok(output.stderr)
}

/// The signing key that `usher user list` shows for the user.
pub fn listed(mail: &Mail, user: &str) -> Result<String> {
    let list = mail.laptop.run(["usher", "user", "list"])?.stdout;
    let line = list.lines().find(|line| line.starts_with(user));
    Ok(line.ok_or("not listed")?.to_owned())
}
