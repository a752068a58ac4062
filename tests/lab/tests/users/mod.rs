//! What the tests of keys and of certificates share: what is made for users and given to hosts, and
//! what users and hosts tell.
#![allow(dead_code, reason = "each test program uses its part")]

use std::error::Error;

use serde_json::Value;
use usher_lab::{Host, Mail};

/// A service at port 144 for who has the key for banking.
pub const VAULT: &str = r#"service vault {
  program "/usr/lib/dovecot/imap" "-o" "mail_location=maildir:~/Maildir";
  listen 144; style connection; users mail; hosts laptop;
  keys banking;
}
"#;

/// Makes a key pair in /root of a host and gives its public line.
pub fn keygen(host: &Host, name: &str) -> Result<String, Box<dyn Error>> {
    let path = format!("/root/{name}");
    host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &path])?;
    Ok(host.read(format!("{path}.pub"))?)
}

/// `usher user add` with these options; gives what it says.
pub fn add(host: &Host, user: &str, options: &[&str]) -> Result<String, Box<dyn Error>> {
    let command = [&["usher", "user", "add", user], options].concat();
    Ok(host.run(command)?.stdout)
}

/// What a command of Usher's on a host tells in JSON.
pub fn json(host: &Host, command: &[&str]) -> Result<Value, Box<dyn Error>> {
    let told = host.run([&["usher", "--json"], command].concat())?;
    Ok(serde_json::from_str(&told.stdout)?)
}

/// What somebody is told whose connection is refused.
pub fn refused(mail: &Mail, user: &str, service: &str) -> Result<String, Box<dyn Error>> {
    let connect = mail.laptop.command(["usher", "connect", service]);
    let output = connect.user(user).run()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    Ok(output.stderr)
}
