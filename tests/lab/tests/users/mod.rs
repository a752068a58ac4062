//! Helpers for users and hosts: keys, commands, and their output.
#![allow(dead_code, reason = "each test program uses its part")]

use std::error::Error;

use serde_json::Value;
use usher_lab::{Host, Mail};

/// A service at port 144 for users with the key for banking.
pub const VAULT: &str = concat!(
    r#"service vault {
  program "#,
    usher_lab::imap!(),
    r#";
  listen 144; style connection; users mail; hosts laptop;
  keys banking;
}
"#
);

/// Makes a key pair in /root of a host and returns its public line.
pub fn keygen(host: &Host, name: &str) -> Result<String, Box<dyn Error>> {
    Ok(host.make_key(&format!("/root/{name}"))?)
}

/// Runs `usher user add` with these options; returns its output.
pub fn add(host: &Host, user: &str, options: &[&str]) -> Result<String, Box<dyn Error>> {
    let command = [&["usher", "user", "add", user], options].concat();
    Ok(host.run(command)?.stdout)
}

/// The JSON output of an Usher command on a host.
pub fn json(host: &Host, command: &[&str]) -> Result<Value, Box<dyn Error>> {
    let told = host.run([&["usher", "--json"], command].concat())?;
    Ok(serde_json::from_str(&told.stdout)?)
}

/// The exit status of an Usher command on a host, and its JSON output.
pub fn answer(host: &Host, command: &[&str]) -> Result<(i32, Value), Box<dyn Error>> {
    let told = host
        .command([&["usher", "--json"], command].concat())
        .run()?;
    let code = told.status.code().ok_or("killed")?;
    let json = serde_json::from_str(&told.stdout);
    Ok((code, json.map_err(|error| format!("{error}: {told:?}"))?))
}

/// User and reason of each session that has ended, oldest first.
pub fn recent(mail: &Mail) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let view = json(&mail.mailhost, &["who", "--recent"])?;
    let ended = view["ended"].as_array().ok_or("no list")?.iter();
    let word = |ended: &Value, member: &str| ended[member].as_str().map(str::to_owned);
    let ended = ended.map(|ended| Some((word(ended, "user")?, word(ended, "reason")?)));
    Ok(ended.collect::<Option<_>>().ok_or("a member is missing")?)
}

/// The message to a user whose connection is refused.
pub fn refused(mail: &Mail, user: &str, service: &str) -> Result<String, Box<dyn Error>> {
    let connect = mail.laptop.command(["usher", "connect", service]);
    let output = connect.user(user).run()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    Ok(output.stderr)
}
