//! `usher who --watch` shows what comes and goes.

use serde_json::Value;
use usher_lab::{Lab, PATIENCE, Running};

use crate::reading::{Outcome, connect, is_cut, is_served, lives};

/// Reads past a line of the event, about this user if there is one.
fn shows(watch: &mut Running, event: &str, user: &str) -> Outcome {
    let line = format!("{event}  {user}");
    let before = watch.read_past(&line, PATIENCE)?;
    assert!(before.lines().all(|line| line.contains("Z  ")), "{before}");
    Ok(())
}

#[test]
fn a_watch_shows_sessions_connections_and_refusals() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let mut bob = connect(&mail, "bob")?;
    let mut watch = host.command(["usher", "who", "--watch"]).spawn()?;
    let mut of_bob = host
        .command(["usher", "who", "--watch", "--user", "bob"])
        .spawn()?;
    for of_any in [&mut watch, &mut of_bob] {
        shows(of_any, "open        ", "bob from laptop at imap")?;
        shows(of_any, "connected   ", "bob from laptop at imap")?;
    }

    let mut alice = connect(&mail, "alice")?;
    shows(&mut watch, "open        ", "alice from laptop at imap")?;
    shows(&mut watch, "connected   ", "alice from laptop at imap")?;
    alice.end()?;
    shows(&mut watch, "disconnected", "alice from laptop at imap")?;

    let mut alice = connect(&mail, "alice")?;
    shows(&mut watch, "connected   ", "alice from laptop at imap")?;
    host.run(["usher", "user", "disable", "alice"])?;
    is_cut(&mut alice)?;
    shows(&mut watch, "ended       ", "alice from laptop at imap")?;
    assert!(!is_served(&mail, "alice", "imap")?);
    shows(&mut watch, "refused     ", "1: disabled_user")?;

    // The connection of bob is all that the other one has seen.
    lives(&mut bob)?;
    bob.end()?;
    let rest = of_bob.read_past("disconnected  bob from laptop", PATIENCE)?;
    assert_eq!(rest.lines().count(), 1, "{rest}");
    Ok(())
}

#[test]
fn a_watch_goes_on_when_the_keeper_comes_back() -> Outcome {
    let mut mail = Lab::mail()?;
    let command = ["usher", "--json", "who", "--watch"];
    let mut watch = mail.mailhost.command(command).spawn()?;
    let mut next = |event: &str| -> Result<Value, Box<dyn std::error::Error>> {
        let lines = watch.read_past(&format!("\"event\":\"{event}\""), PATIENCE)?;
        let last = lines.lines().last().ok_or("no line")?;
        Ok(serde_json::from_str(last)?)
    };
    let bob = connect(&mail, "bob")?;
    let opened = next("session_opened")?;
    assert_eq!(opened["whose"]["user"], "bob", "{opened}");
    assert_eq!(next("connected")?["whose"], opened["whose"]);

    mail.keeper.stop()?;
    let lost = next("keeper_lost")?;
    let text = lost["text"].as_str().unwrap_or_default();
    assert!(text.contains("does not run"), "{lost}");
    mail.keeper.start()?;
    next("keeper_back")?;
    // The connection has stayed, so it is no news.
    let alice = connect(&mail, "alice")?;
    assert_eq!(next("connected")?["whose"]["user"], "alice");
    drop((alice, bob));
    Ok(())
}

#[test]
fn a_watch_begins_with_a_keeper_or_fails() -> Outcome {
    let mut mail = Lab::mail()?;
    mail.keeper.stop()?;
    let watch = mail.mailhost.command(["usher", "who", "--watch"]).run()?;
    assert_eq!(watch.status.code(), Some(3), "{watch:?}");
    assert!(
        watch.stderr.contains("does not run on this host"),
        "{watch:?}"
    );
    Ok(())
}
