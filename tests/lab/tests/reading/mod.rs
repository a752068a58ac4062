//! Users who read their mail, on connections that stay open.
#![allow(dead_code, reason = "each test program uses its part")]

use usher_lab::{Mail, PATIENCE, Running, User, eventually};

/// The result of a test.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Opens a connection that stays open.
pub fn connect(mail: &Mail, user: &str) -> Result<Running, Box<dyn std::error::Error>> {
    connect_to(mail, user, "mailhost:imap")
}

/// The same, to another service that greets like it.
pub fn connect_to(
    mail: &Mail,
    user: &str,
    service: &str,
) -> Result<Running, Box<dyn std::error::Error>> {
    let mut connection = mail
        .laptop
        .command(["usher", "connect", service])
        .user(user)
        .spawn()?;
    let greeting = connection.read_past("\n", PATIENCE)?;
    assert!(greeting.starts_with("* PREAUTH"), "{greeting}");
    Ok(connection)
}

/// Returns whether the user is served; otherwise the user must be refused.
pub fn is_served(
    mail: &Mail,
    user: &str,
    service: &str,
) -> Result<bool, Box<dyn std::error::Error>> {
    let connection = mail
        .laptop
        .command(["usher", "connect", &format!("mailhost:{service}")])
        .user(user)
        .input("x LOGOUT\r\n")
        .run()?;
    let served = connection.stdout.contains(&format!("Logged in as {user}"));
    let refused = connection.stderr.contains("refused: ");
    assert!(served != refused, "{connection:?}");
    Ok(served)
}

/// Sends a command and requires its answer.
pub fn lives(connection: &mut Running) -> Outcome {
    connection.write("x NOOP\r\n")?;
    connection.read_past("x OK", PATIENCE)?;
    Ok(())
}

/// Waits until it has ended.
pub fn is_cut(connection: &mut Running) -> Outcome {
    assert!(
        connection.wait(PATIENCE)?.is_some(),
        "the connection is still there"
    );
    Ok(())
}

/// Waits until it has ended, and its user's processes on mailhost have.
pub fn is_gone(mail: &Mail, connection: &mut Running, user: User) -> Outcome {
    is_cut(connection)?;
    eventually("the user has no processes", || {
        let processes = mail.mailhost.processes()?;
        Ok(!processes.iter().any(|p| p.uid == user.mailhost_uid))
    })
}

/// The keeper's answer in JSON.
pub fn who(mail: &Mail) -> Result<String, Box<dyn std::error::Error>> {
    Ok(mail.mailhost.run(["usher", "--json", "who"])?.stdout)
}
