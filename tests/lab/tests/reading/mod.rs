//! Users who read their mail, on connections that stay open.
#![allow(dead_code, reason = "each test program uses its part")]

use std::time::Duration;

use usher_lab::{Mail, Running};

/// What a test comes to.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Generous: time decides no test.
pub const PATIENCE: Duration = Duration::from_secs(120);

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

/// Says something and is answered.
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

/// What the keeper tells in JSON.
pub fn who(mail: &Mail) -> Result<String, Box<dyn std::error::Error>> {
    Ok(mail.mailhost.run(["usher", "--json", "who"])?.stdout)
}
