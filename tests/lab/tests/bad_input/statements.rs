//! Statements and signatures that are wrong.

use crate::attack::{Attack, IMAP, Result};
use usher_lab::hostile::{Asked, Identity, fresh_user_key, now, sign_bytes};
use usher_proto::{Authenticator, ClientBody, MAX_CHAIN_LENGTH, NAMESPACE, Refusal};

// Threat model: A28, A147
#[test]
fn a_wrong_statement_or_signature_has_its_own_refusal() -> Result {
    let attack = Attack::new()?;
    let (alice, bob) = (attack.user_key("alice")?, attack.user_key("bob")?);
    let mut channel = attack.channel()?;
    let now = now();

    type Bend = Box<dyn Fn(&mut Asked)>;
    let bent: Vec<(&str, Refusal, Bend)> = vec![
        (
            "meant for another server",
            Refusal::WrongServerHost,
            Box::new(|asked| asked.statement.server_host_key = Identity::fresh().public()),
        ),
        (
            "made for another client",
            Refusal::WrongClientHost,
            Box::new(|asked| asked.statement.client_host_key = Identity::fresh().public()),
        ),
        (
            "from the future",
            Refusal::FutureDated,
            Box::new(move |asked| asked.statement.issued = now + 600),
        ),
        (
            "stale",
            Refusal::Stale,
            Box::new(move |asked| asked.statement.issued = now - 600),
        ),
        (
            "expired",
            Refusal::Expired,
            Box::new(move |asked| {
                asked.statement.issued = now - 20;
                asked.statement.expires = now - 10;
            }),
        ),
        (
            "expired before it was issued",
            Refusal::Expired,
            Box::new(move |asked| {
                asked.statement.issued = now + 10;
                asked.statement.expires = now + 9;
            }),
        ),
        (
            "for more than a week",
            Refusal::LifetimeTooLong,
            Box::new(move |asked| asked.statement.expires = now + 8 * 24 * 3600),
        ),
        (
            "for ever",
            Refusal::LifetimeTooLong,
            Box::new(|asked| asked.statement.expires = u64::MAX),
        ),
        (
            "a chain of nothing",
            Refusal::Malformed,
            Box::new(|asked| asked.statement.chain_length = 0),
        ),
        (
            "a chain too long",
            Refusal::Malformed,
            Box::new(|asked| asked.statement.chain_length = MAX_CHAIN_LENGTH + 1),
        ),
        (
            "an unknown service",
            Refusal::UnknownService,
            Box::new(|asked| asked.statement.service = "smtp".parse().unwrap()),
        ),
        (
            "another port",
            Refusal::WrongServerAddress,
            Box::new(|asked| asked.statement.server.set_port(144)),
        ),
        (
            "another address",
            Refusal::WrongServerAddress,
            Box::new(|asked| asked.statement.server = ([10, 77, 0, 99], IMAP).into()),
        ),
    ];
    for (what, reason, bend) in bent {
        let mut asked = attack.asked("alice")?;
        bend(&mut asked);
        attack.refused(&mut channel, what, &asked.sign(&alice)?, reason)?;
        // doctor reports differing clocks, and none of the other faults.
        clocks_are_told(&attack, what)?;
    }

    let asked = || attack.asked("alice");
    let bytes = asked()?.statement.encode();
    let flip = |mut blob: Vec<u8>, place: usize| {
        blob[place] ^= 1;
        blob
    };
    let with_signature = |change: &dyn Fn(Vec<u8>) -> Vec<u8>| -> Result<Authenticator> {
        let mut authenticator = asked()?.sign(&alice)?;
        authenticator.signature = change(authenticator.signature);
        Ok(authenticator)
    };
    let sign = |statement: Vec<u8>| sign_bytes(statement, &alice, NAMESPACE);
    let followed = [bytes.as_slice(), &[0]].concat();
    let mut other_statement = asked()?.sign(&alice)?;
    other_statement.statement = asked()?.statement.encode();
    let made = vec![
        (
            "a statement cut short",
            sign(bytes[..100].to_vec())?,
            Refusal::Truncated,
        ),
        ("no statement", sign(Vec::new())?, Refusal::Truncated),
        ("a statement and more", sign(followed)?, Refusal::Malformed),
        (
            "another magic",
            sign(flip(bytes.clone(), 0))?,
            Refusal::Malformed,
        ),
        (
            "another version",
            sign(flip(bytes.clone(), 18))?,
            Refusal::UnknownVersion,
        ),
        (
            "a user called amice",
            sign(flip(bytes.clone(), 24))?,
            Refusal::UnknownUser,
        ),
        (
            "no signature",
            with_signature(&|_| Vec::new())?,
            Refusal::Truncated,
        ),
        (
            "half a signature",
            with_signature(&|blob| blob[..blob.len() / 2].to_vec())?,
            Refusal::Truncated,
        ),
        (
            "a signature of another version",
            with_signature(&|blob| flip(blob, 9))?,
            Refusal::UnknownVersion,
        ),
        (
            "one bit of the signature",
            with_signature(&|blob| {
                let last = blob.len() - 1;
                flip(blob, last - 20)
            })?,
            Refusal::BadSignature,
        ),
        (
            "the signature of another statement",
            other_statement,
            Refusal::BadSignature,
        ),
        (
            "a signature for git",
            sign_bytes(asked()?.statement.encode(), &alice, "git")?,
            Refusal::BadSignature,
        ),
        (
            "a key nobody knows",
            asked()?.sign(&fresh_user_key())?,
            Refusal::UnknownKey,
        ),
        (
            "bob's key in alice's name",
            asked()?.sign(&bob)?,
            Refusal::UnknownKey,
        ),
        (
            "alice's key in bob's name",
            attack.asked("bob")?.sign(&alice)?,
            Refusal::UnknownKey,
        ),
        (
            "a user nobody knows",
            attack.asked("mallory")?.sign(&alice)?,
            Refusal::UnknownUser,
        ),
    ];
    for (what, authenticator, reason) in made {
        attack.refused(&mut channel, what, &authenticator, reason)?;
    }

    // The twins, on the same channel: at once, and exactly at the limits.
    for (user, key) in [("alice", &alice), ("bob", &bob)] {
        attack.granted(&mut channel, &mut attack.asked(user)?, key)?;
    }
    let mut edge = attack.asked("alice")?;
    edge.statement.issued -= 20;
    edge.statement.expires = edge.statement.issued + 7 * 24 * 3600;
    attack.granted(&mut channel, &mut edge, &alice)?;
    let mut ahead = attack.asked("alice")?;
    ahead.statement.issued += 20;
    attack.granted(&mut channel, &mut ahead, &alice)?;
    Ok(())
}

/// doctor's report about laptop's clock, from the last session that was refused because of it.
fn clocks_are_told(attack: &Attack, what: &str) -> Result {
    let told = attack.mail.mailhost.command(["usher", "doctor"]).run()?;
    let seen = match what {
        "from the future" => Some("ahead of"),
        "meant for another server" | "made for another client" => None,
        _ => Some("behind"),
    };
    let is_told = |way: &str| {
        let mut lines = told.stdout.lines();
        lines.any(|line| {
            line.contains("the clock of laptop was ")
                && line.contains(&format!(" s {way} this host's "))
        })
    };
    for way in ["ahead of", "behind"] {
        assert_eq!(is_told(way), seen == Some(way), "{what}: {told:?}");
    }
    assert_eq!(
        told.status.code(),
        Some(i32::from(seen.is_some())),
        "{told:?}"
    );
    Ok(())
}

#[test]
fn a_good_session_shows_that_the_clocks_agree_again() -> Result {
    let attack = Attack::new()?;
    let alice = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut late = attack.asked("alice")?;
    late.statement.issued = now() - 600;
    attack.refused(&mut channel, "stale", &late.sign(&alice)?, Refusal::Stale)?;
    clocks_are_told(&attack, "stale")?;
    drop(channel);
    attack.mail.laptop.run_as(
        "bob",
        ["sh", "-c", "echo x LOGOUT | usher connect mailhost:imap"],
    )?;
    let told = attack.mail.mailhost.run(["usher", "doctor"])?.stdout;
    assert!(!told.contains("the clock of"), "{told}");
    Ok(())
}

// Threat model: A96
#[test]
fn claimed_users_share_the_log_lines_of_their_host() -> Result {
    let attack = Attack::new()?;
    let (mut channel, key) = (attack.channel()?, fresh_user_key());
    for number in 0..30 {
        let mut asked = attack.asked_of_length("alice", 2)?;
        asked.statement.user = format!("user{number}").parse()?;
        let authenticator = asked.sign(&key)?;
        let opening = ClientBody::Open {
            authenticator,
            first: None,
        };
        assert_eq!(channel.ask(opening)?, Err(Refusal::NotAuthenticated));
    }
    let log = attack.mail.verifier.log()?;
    assert_eq!(log.matches("refused a session: ").count(), 20, "{log}");
    assert!(log.contains("claimed_user=\"user7\""), "{log}");
    // Twin: alice's own session.
    let mut asked = attack.asked("alice")?;
    attack.granted(&mut channel, &mut asked, &attack.user_key("alice")?)?;
    Ok(())
}
