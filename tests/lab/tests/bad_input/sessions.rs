//! Sessions that are refused, that cannot be opened twice, and that belong to one host.

use crate::attack::{Attack, IMAP, Result, listen, still_works};
use usher_lab::eventually;
use usher_lab::hostile::{Asked, Channel, Port, fresh_user_key, id_of, now, random};
use usher_proto::{Refusal, SessionId};

// Threat model: A26
#[test]
fn a_refusal_has_its_reason_and_ends_with_a_change_of_policy() -> Result {
    let attack = Attack::new()?;
    let mailhost = &attack.mail.mailhost;
    // Known on mailhost from now on: stranger as a host, carol and dave by keys; dave and eve in
    // the policy, dave without an account.
    let stranger_key = attack.add_stranger()?;
    let dave = fresh_user_key();
    mailhost.write("/root/dave.pub", dave.public_key().to_openssh()?)?;
    mailhost.run([
        "usher",
        "user",
        "add",
        "dave",
        "--public-key",
        "/root/dave.pub",
    ])?;
    let policy_path = "/etc/usher/policy.d/mail.policy";
    let policy = mailhost
        .read(policy_path)?
        .replace("member alice, bob;", "member alice, bob, dave;");
    mailhost.write(policy_path, &policy)?;
    mailhost.run(["usher", "policy", "apply"])?;

    let (alice, carol) = (attack.user_key("alice")?, attack.user_key("carol")?);
    let mut channel = attack.channel()?;
    attack.refused(
        &mut channel,
        "carol, whom the policy does not name",
        &attack.asked("carol")?.sign(&carol)?,
        Refusal::UserNotPermitted,
    )?;
    attack.refused(
        &mut channel,
        "dave, who has no account",
        &attack.asked("dave")?.sign(&dave)?,
        Refusal::NoLocalAccount,
    )?;

    // alice from stranger, on stranger's channel: the authenticator is correct except for that.
    let mut elsewhere = Channel::connect(&attack.mail.stranger, mailhost, &stranger_key)?;
    let ask_elsewhere =
        |user: &str| Asked::right(user, "imap", stranger_key.public(), mailhost, IMAP, 16);
    attack.refused(
        &mut elsewhere,
        "alice from a host the policy does not name",
        &ask_elsewhere("alice")?.sign(&alice)?,
        Refusal::HostNotPermitted,
    )?;
    // laptop's authenticator on stranger's channel.
    attack.refused(
        &mut elsewhere,
        "an authenticator carried to another channel",
        &attack.asked("alice")?.sign(&alice)?,
        Refusal::WrongClientHost,
    )?;

    mailhost.run(["usher", "user", "disable", "alice"])?;
    attack.refused(
        &mut channel,
        "alice, disabled",
        &attack.asked("alice")?.sign(&alice)?,
        Refusal::DisabledUser,
    )?;
    mailhost.run(["rm", "/etc/usher/users/alice/disabled"])?;

    // The twins: the same clients, when the policy permits.
    mailhost.add_account("dave", 2004)?;
    let policy = policy
        .replace("alice, bob, dave", "alice, bob, dave, carol")
        .replace("hosts laptop", "hosts laptop, stranger");
    mailhost.write(policy_path, &policy)?;
    mailhost.run(["usher", "policy", "apply"])?;
    attack.granted(&mut channel, &mut attack.asked("alice")?, &alice)?;
    attack.granted(&mut channel, &mut attack.asked("dave")?, &dave)?;
    let mut asked = ask_elsewhere("alice")?;
    let port = Port::any(&attack.mail.stranger, attack.mail.stranger.ipv4())?;
    let first = attack.announcement(&mut asked, &port)?;
    assert_eq!(elsewhere.open_session(&asked.sign(&alice)?, first)?, Ok(()));
    attack.served(port, "alice")?;
    Ok(())
}

// Threat model: A28
#[test]
fn an_authenticator_opens_one_session_once() -> Result {
    let mut attack = Attack::new()?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let authenticator = asked.sign(&key)?;
    let mut working = attack.granted(&mut channel, &mut asked, &key)?;

    attack.refused(&mut channel, "at once", &authenticator, Refusal::Replayed)?;
    let mut again = attack.channel()?;
    attack.refused(
        &mut again,
        "on a new channel",
        &authenticator,
        Refusal::Replayed,
    )?;
    attack.mail.verifier.crash()?;
    let mut again = reconnected(&attack)?;
    attack.refused(
        &mut again,
        "to a new verifier",
        &authenticator,
        Refusal::Replayed,
    )?;
    attack.mail.keeper.crash()?;
    let mut again = reconnected(&attack)?;
    attack.refused(
        &mut again,
        "to a new keeper",
        &authenticator,
        Refusal::Replayed,
    )?;
    assert_eq!(again.close(id_of(&authenticator))?, Ok(()));
    attack.refused(
        &mut again,
        "after its end",
        &authenticator,
        Refusal::Replayed,
    )?;

    still_works(&mut working)?;
    attack.granted(&mut again, &mut attack.asked("alice")?, &key)?;
    Ok(())
}

/// A channel to a verifier that is connected to its keeper: the answer to closing an unknown session
/// shows it.
fn reconnected(attack: &Attack) -> Result<Channel> {
    let mut found = None;
    eventually("the daemons find each other again", || {
        if let Ok(mut channel) = attack.channel()
            && channel.close(SessionId::from_bytes(random()))? == Err(Refusal::UnknownSession)
        {
            found = Some(channel);
        }
        Ok(found.is_some())
    })?;
    Ok(found.ok_or("no channel")?)
}

#[test]
fn a_host_speaks_for_its_own_sessions_only() -> Result {
    let attack = Attack::new()?;
    let (mailhost, stranger) = (&attack.mail.mailhost, &attack.mail.stranger);
    let key = attack.user_key("alice")?;
    let stranger_key = attack.add_stranger()?;
    mailhost.run(["usher", "policy", "apply"])?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let _working = attack.granted(&mut channel, &mut asked, &key)?;
    let session = id_of(&asked.sign(&key)?);
    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));

    // Stranger has everything of laptop's session: its id, its next element, its addresses.
    let mut elsewhere = Channel::connect(stranger, mailhost, &stranger_key)?;
    let own = Port::any(stranger, stranger.ipv4())?;
    let mut stolen = attack.announcement(&mut asked, &own)?;
    let verdict = elsewhere.announce(session, stolen)?;
    assert_eq!(verdict, Err(Refusal::UnknownSession));
    attack.reset(own);
    let next = attack.port()?;
    stolen.connection = attack.tuple(&next);
    let heard = listen(&attack.mail.verifier)?;
    let verdict = elsewhere.announce(session, stolen)?;
    assert_eq!(verdict, Err(Refusal::UnknownSession));
    heard.reason(&attack.mail.verifier, Refusal::UnknownSession, "announced")?;
    let verdict = elsewhere.withdraw(session, announcement.connection)?;
    assert_eq!(verdict, Err(Refusal::UnknownSession));
    assert_eq!(elsewhere.close(session)?, Err(Refusal::UnknownSession));

    // Laptop itself may do all of it.
    attack.served(port, "alice")?;
    assert_eq!(channel.announce(session, stolen)?, Ok(()));
    assert_eq!(channel.withdraw(session, stolen.connection)?, Ok(()));
    attack.reset(next);
    assert_eq!(channel.close(session)?, Ok(()));
    Ok(())
}

// Threat model: A33
#[test]
fn a_closed_sessions_connections_end_at_its_time() -> Result {
    let attack = Attack::new()?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut other = attack.asked("alice")?;
    let mut others = attack.granted(&mut channel, &mut other, &key)?;
    let mut asked = attack.asked("alice")?;
    asked.statement.expires = now() + 15;
    let mut connection = attack.granted(&mut channel, &mut asked, &key)?;
    // Like a client that has opened the next one.
    assert_eq!(channel.close(id_of(&asked.sign(&key)?))?, Ok(()));
    still_works(&mut connection)?;
    let keeper = listen(&attack.mail.keeper)?;
    keeper.line(&attack.mail.keeper, &["session ended", "expired"])?;
    eventually("the connection is cut", || {
        Ok(still_works(&mut connection).is_err())
    })?;
    still_works(&mut others)
}
