//! Full tables: further entries are refused with their own reason, existing ones continue, and there is
//! room again when one has ended.
//!
//! Threat model: A147
#![forbid(unsafe_code)]

mod attack;
mod users;

use attack::{Attack, Result, listen, still_works};
use usher_lab::hostile::{Asked, Channel, id_of, random};
use usher_lab::{eventual, eventually};
use usher_proto::{Refusal, SessionId};

/// The mail topology, with its keeper restarted with this size of one of its tables.
fn with_table(option: &str, size: &str) -> Result<Attack> {
    let mut attack = Attack::new()?;
    attack.mail.keeper.stop()?;
    // Tables keep their size while they are pinned.
    attack
        .mail
        .mailhost
        .run(["rm", "-r", "/sys/fs/bpf/usher"])?;
    attack.mail.keeper.add_arguments([option, size]);
    attack.mail.keeper.start()?;
    let mut channel = attack.channel()?;
    eventually("the verifier has found the new keeper", || {
        let verdict = channel.close(SessionId::from_bytes(random()))?;
        Ok(verdict == Err(Refusal::UnknownSession))
    })?;
    Ok(attack)
}

/// Announces a connection; it must be refused for want of room.
fn full(attack: &Attack, channel: &mut Channel, asked: &mut Asked, session: SessionId) -> Result {
    let heard = listen(&attack.mail.verifier)?;
    let port = attack.port()?;
    let announcement = attack.announcement(asked, &port)?;
    let verdict = channel.announce(session, announcement)?;
    assert_eq!(verdict, Err(Refusal::AdmissionTableFull));
    heard.reason(&attack.mail.verifier, Refusal::AdmissionTableFull, "full")?;
    attack.reset(port);
    Ok(())
}

#[test]
fn a_full_table_of_connections_refuses_until_one_ends() -> Result {
    let attack = with_table("--connections", "2")?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let session = id_of(&asked.sign(&key)?);
    let mut working = attack.granted(&mut channel, &mut asked, &key)?;
    let announced = attack.port()?;
    let announcement = attack.announcement(&mut asked, &announced)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));

    full(&attack, &mut channel, &mut asked, session)?;
    full(&attack, &mut channel, &mut asked, session)?;
    still_works(&mut working)?;
    // Earlier announcements still work.
    let second = attack.served(announced, "alice")?;
    full(&attack, &mut channel, &mut asked, session)?;

    // A connection ends.
    drop(second);
    let (port, announcement) = eventual("there is room for a connection", || {
        let port = attack.port()?;
        let announcement = attack.announcement(&mut asked, &port)?;
        match channel.announce(session, announcement)? {
            Ok(()) => Ok(Some((port, announcement))),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::AdmissionTableFull);
                Ok(None)
            }
        }
    })?;
    // An announcement is withdrawn.
    full(&attack, &mut channel, &mut asked, session)?;
    assert_eq!(channel.withdraw(session, announcement.connection)?, Ok(()));
    attack.reset(port);
    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));
    attack.served(port, "alice")?;
    still_works(&mut working)
}

// Threat model: A35
#[test]
fn a_full_table_of_sessions_refuses_and_keeps_what_it_has() -> Result {
    let attack = with_table("--sessions", "2")?;
    let (alice, bob) = (attack.user_key("alice")?, attack.user_key("bob")?);
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let session = id_of(&asked.sign(&alice)?);
    let mut working = attack.granted(&mut channel, &mut asked, &alice)?;
    let mut of_bob = attack.granted(&mut channel, &mut attack.asked("bob")?, &bob)?;
    for (user, key) in [("alice", &alice), ("bob", &bob)] {
        let third = attack.asked(user)?.sign(key)?;
        attack.refused(
            &mut channel,
            "a third session",
            &third,
            Refusal::SessionTableFull,
        )?;
    }
    still_works(&mut working)?;
    still_works(&mut of_bob)?;
    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));
    attack.served(port, "alice")?;
    Ok(())
}

#[test]
fn a_full_table_of_listeners_refuses_until_one_has_gone() -> Result {
    let attack = with_table("--listeners", "1")?;
    let (alice, bob) = (attack.user_key("alice")?, attack.user_key("bob")?);
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let session = id_of(&asked.sign(&alice)?);
    let mut working = attack.granted(&mut channel, &mut asked, &alice)?;
    let refused = attack.asked("bob")?.sign(&bob)?;
    // It is neither on record nor an ended session, so it would still be valid later.
    for _ in 0..2 {
        attack.refused(
            &mut channel,
            "a second user",
            &refused,
            Refusal::ListenerTableFull,
        )?;
    }
    assert_eq!(users::recent(&attack.mail)?, []);
    let log = attack.mail.mailhost.run(["usher", "log", "show"])?.stdout;
    assert!(log.contains("alice") && !log.contains("bob"), "{log}");
    // A second session of a user with a listener needs no other listener.
    let mut second = attack.asked("alice")?;
    attack.granted(&mut channel, &mut second, &alice)?;
    still_works(&mut working)?;

    drop(working);
    for session in [session, id_of(&second.sign(&alice)?)] {
        assert_eq!(channel.close(session)?, Ok(()));
    }
    let mut served = eventual("there is room for a listener", || {
        let mut asked = attack.asked("bob")?;
        let port = attack.port()?;
        let first = attack.announcement(&mut asked, &port)?;
        match channel.open_session(&asked.sign(&bob)?, first)? {
            Ok(()) => attack.served(port, "bob").map(Some),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::ListenerTableFull);
                Ok(None)
            }
        }
    })?;
    still_works(&mut served)
}
