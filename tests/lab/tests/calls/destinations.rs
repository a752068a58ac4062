//! The destinations of processes that have become their users.

use crate::service::{Client, Result, fenced, start_service};
use usher_lab::{Mail, PATIENCE};

const POLICY: &str = "/etc/usher/policy.d/calls.policy";

/// The results of connecting a socket that the service made, and one of the process's own.
fn reaches(client: &mut Client, address: &str) -> Result<String> {
    client.connection.write(format!("connect {address}\n"))?;
    Ok(client
        .connection
        .read_past("\n", PATIENCE)?
        .trim_end()
        .to_owned())
}

fn apply(mail: &Mail, policy: &str) -> Result {
    mail.mailhost.write(POLICY, policy)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    Ok(())
}

// Threat model: A70
#[test]
fn a_settled_process_connects_only_where_the_policy_permits() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let policy = mail.mailhost.read(POLICY)?;
    let restricted = policy.replacen("listen 7000;", "listen 7000; connect laptop;", 1);
    assert_ne!(restricted, policy);
    let _service = start_service(&mail, &["fork"])?;
    let laptop = mail.laptop.ipv4().to_string();
    let stranger = mail.stranger.ipv4().to_string();
    let mut alice = Client::connect(&mail, "alice")?;
    let mut both = || -> Result<[String; 2]> {
        Ok([
            reaches(&mut alice, &laptop)?,
            reaches(&mut alice, &stranger)?,
        ])
    };
    assert_eq!(both()?, ["0 0", "0 0"]);
    apply(&mail, &restricted)?;
    assert_eq!(both()?, ["0 0", "13 13"]);
    let mut bob = Client::connect(&mail, "bob")?;
    assert_eq!(reaches(&mut bob, &stranger)?, "13 13");
    apply(&mail, &policy)?;
    assert_eq!(both()?, ["0 0", "0 0"]);
    Ok(())
}
