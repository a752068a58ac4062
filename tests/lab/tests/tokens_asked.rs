//! Slots for tokens are granted and refused on the control channel.
#![forbid(unsafe_code)]

mod attack;

use std::fs;

use attack::{Attack, Result, listen};
use usher_lab::hostile::{Channel, id_of, random};
use usher_lab::{Signal, eventually};
use usher_proto::{ClientBody, ClientFrame, Refusal, ServerFrame, SessionId, TokenKey};

fn key() -> TokenKey {
    TokenKey::from_bytes(random())
}

#[test]
fn a_session_gets_one_slot_while_it_is_open_and_nobody_elses() -> Result {
    let attack = Attack::new()?;
    let alice = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let _served = attack.granted(&mut channel, &mut asked, &alice)?;
    let session = id_of(&asked.sign(&alice)?);

    let made_up = SessionId::from_bytes(random());
    let heard = listen(&attack.mail.verifier)?;
    assert_eq!(
        channel.tokens(made_up, key())?,
        Err(Refusal::UnknownSession)
    );
    heard.reason(&attack.mail.verifier, Refusal::UnknownSession, "made up")?;

    let slot = channel.tokens(session, key())?;
    assert!(slot.is_ok(), "{slot:?}");
    // A second request comes from a client with another key, or one that lost the answer; the first
    // key stays.
    let again = channel.tokens(session, key())?;
    assert_eq!(again, Err(Refusal::Replayed));

    // Another session of the same user has another slot.
    let mut other = attack.asked("alice")?;
    let _served = attack.granted(&mut channel, &mut other, &alice)?;
    let other = channel.tokens(id_of(&other.sign(&alice)?), key())?;
    assert!(other.is_ok() && other != slot, "{other:?}, {slot:?}");

    assert_eq!(channel.close(session)?, Ok(()));
    let ended = channel.tokens(session, key())?;
    assert_eq!(ended, Err(Refusal::SessionEnded));
    Ok(())
}

// Threat model: A26
#[test]
fn a_host_gets_no_slot_for_the_session_of_another() -> Result {
    let attack = Attack::new()?;
    let (mailhost, stranger) = (&attack.mail.mailhost, &attack.mail.stranger);
    let stranger_key = attack.add_stranger()?;
    mailhost.run(["usher", "policy", "apply"])?;
    let alice = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let _served = attack.granted(&mut channel, &mut asked, &alice)?;
    let session = id_of(&asked.sign(&alice)?);

    let mut elsewhere = Channel::connect(stranger, mailhost, &stranger_key)?;
    let stolen = elsewhere.tokens(session, key())?;
    assert_eq!(stolen, Err(Refusal::UnknownSession));
    let own = channel.tokens(session, key())?;
    assert!(own.is_ok(), "{own:?}");
    Ok(())
}

// Threat model: A26
#[test]
fn an_unrecorded_session_grants_and_announces_nothing() -> Result {
    let mut attack = Attack::new()?;
    let alice = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let authenticator = asked.sign(&alice)?;
    let session = id_of(&authenticator);
    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;

    attack.mail.recorder.kill(Signal::STOP)?;
    let pid = attack.mail.recorder.pid()?;
    eventually("the recorder is stopped", || {
        Ok(fs::read_to_string(format!("/proc/{pid}/stat"))?.contains(") T "))
    })?;
    let request = 1_000_000;
    let open = ClientFrame {
        request,
        body: ClientBody::Open {
            authenticator,
            first: None,
        },
    };
    channel.send(&open.encode())?;
    let early = channel.tokens(session, key())?;
    assert_eq!(early, Err(Refusal::UnknownSession));
    let early = channel.announce(session, announcement)?;
    assert_eq!(early, Err(Refusal::UnknownSession));

    attack.mail.recorder.kill(Signal::CONT)?;
    let opened = loop {
        match channel.receive()?.ok_or("the channel closed")? {
            ServerFrame::Answer {
                request: answered,
                verdict,
            } if answered == request => break verdict.map(drop),
            _ => {}
        }
    };
    assert_eq!(opened, Ok(()));
    assert!(channel.tokens(session, key())?.is_ok());
    assert_eq!(channel.announce(session, announcement)?, Ok(()));
    attack.served(port, "alice")?;
    Ok(())
}
