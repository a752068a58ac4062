//! Frames, authenticators, chain elements and announcements that are not right, each refused with
//! its own reason in the answer and in the log, beside the right one of the same client, which is
//! served.
#![forbid(unsafe_code)]

mod attack;

use std::net::SocketAddr;

use attack::{Attack, IMAP, Result, listen, still_works};
use usher_lab::hostile::{
    Asked, Channel, Identity, Port, fresh_user_key, id_of, now, random, sign_bytes,
};
use usher_proto::{
    Announcement, Authenticator, ChainElement, ClientFrame, MAX_CHAIN_LENGTH, MAX_FRAME, NAMESPACE,
    Refusal, ServerFrame, SessionId,
};

/// A frame by hand.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(1 + 8 + body.len()).unwrap();
    let mut out = length.to_be_bytes().to_vec();
    out.push(kind);
    out.extend_from_slice(&77_u64.to_be_bytes());
    out.extend_from_slice(body);
    out
}

#[test]
fn a_frame_that_is_none_closes_its_channel_and_nothing_else() -> Result {
    let attack = Attack::new()?;
    let key = attack.user_key("alice")?;
    // alice works all the time, on a connection and a session of her own.
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let mut working = attack.granted(&mut channel, &mut asked, &key)?;
    let session = id_of(&asked.sign(&key)?);

    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    let right = ClientFrame::Announce {
        request: 77,
        session,
        announcement,
    }
    .encode();
    let mut statement_too_long = 600_u32.to_be_bytes().to_vec();
    statement_too_long.extend_from_slice(&[0; 700]);
    let mut mixed_families = right.clone();
    // The client's address of the 4-tuple becomes IPv6, the server's stays IPv4.
    let tuple = mixed_families.len() - 36;
    mixed_families[tuple..tuple + 16].copy_from_slice(&[0x20; 16]);
    let mut no_port = right.clone();
    no_port[tuple + 32..tuple + 34].copy_from_slice(&[0, 0]);
    let oversized = u32::try_from(MAX_FRAME + 1).unwrap().to_be_bytes();

    let cases: Vec<(&str, Vec<u8>, Refusal)> = vec![
        ("length 0", vec![0; 4], Refusal::Truncated),
        ("length 8", vec![0, 0, 0, 8], Refusal::Truncated),
        (
            "length over the limit",
            oversized.into(),
            Refusal::Oversized,
        ),
        ("the greatest length", vec![0xff; 4], Refusal::Oversized),
        (
            "an announcement cut short",
            frame(2, &right[13..60]),
            Refusal::Truncated,
        ),
        (
            "an authenticator of nothing",
            frame(1, &[]),
            Refusal::Truncated,
        ),
        (
            "a statement over its limit",
            frame(1, &statement_too_long),
            Refusal::Oversized,
        ),
        ("an unknown type", frame(99, &[]), Refusal::Malformed),
        ("a server's frame", frame(131, &[]), Refusal::Malformed),
        ("bytes after the end", frame(5, &[0]), Refusal::Malformed),
        ("families mixed", mixed_families, Refusal::Malformed),
        ("a port of zero", no_port, Refusal::Malformed),
        (
            "a greeting of HTTP",
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            Refusal::Oversized,
        ),
    ];
    for (what, bytes, reason) in cases {
        let heard = listen(&attack.mail.verifier)?;
        let mut channel = attack.channel()?;
        channel.send(&bytes)?;
        assert_eq!(channel.receive()?, None, "{what}: the channel stays open");
        heard.reason(&attack.mail.verifier, reason, what)?;
    }
    // Half a frame and the end.
    let mut channel = attack.channel()?;
    channel.send(&right[..20])?;
    drop(channel);

    // The twin, whole, one byte at a time.
    let mut channel = attack.channel()?;
    for byte in &right {
        channel.send(&[*byte])?;
    }
    let granted = ServerFrame::Reply {
        request: 77,
        verdict: Ok(()),
    };
    assert_eq!(channel.receive()?, Some(granted));
    attack.served(port, "alice")?;
    still_works(&mut working)
}

#[test]
fn a_wrong_statement_or_signature_is_refused_with_its_own_reason() -> Result {
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

    // The twins, on the same channel: at once, and at the edges of what is allowed.
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

#[test]
fn who_may_not_is_refused_with_the_reason_and_may_when_policy_says_so() -> Result {
    let attack = Attack::new()?;
    let mailhost = &attack.mail.mailhost;
    let stranger_key = Identity::fresh();
    // Known on mailhost from now on: stranger as a host, carol and dave by keys; dave and eve in
    // the policy, dave without an account.
    mailhost.run([
        "usher",
        "host",
        "add",
        "stranger",
        "--key",
        &stranger_key.public().to_openssh(),
        "--address",
        &attack.mail.stranger.ipv4().to_string(),
    ])?;
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

    // alice from stranger, on a channel of stranger's: the authenticator is right but for that.
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

/// A channel to a verifier that has its keeper: one that closes an unknown session says so.
fn reconnected(attack: &Attack) -> Result<Channel> {
    let deadline = std::time::Instant::now() + attack::LONG;
    loop {
        if let Ok(mut channel) = attack.channel()
            && channel.close(SessionId::from_bytes(random()))? == Err(Refusal::UnknownSession)
        {
            return Ok(channel);
        }
        if std::time::Instant::now() > deadline {
            return Err("the daemons do not find each other again".into());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_wrong_chain_element_or_announcement_is_refused_and_the_right_one_still_counts() -> Result {
    let attack = Attack::new()?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked_of_length("alice", 200)?;
    attack.granted(&mut channel, &mut asked, &key)?;
    let session = id_of(&asked.sign(&key)?);
    let elements: Vec<ChainElement> = asked.chain.by_ref().collect();
    // Position 1 is used; `at(n)` is the element of position n.
    let at = |position: u32| elements[position as usize - 2];

    let mut refused =
        |what: &str, announcement: Announcement, session, reason: Refusal| -> Result {
            let heard = listen(&attack.mail.verifier)?;
            let verdict = channel.announce(session, announcement)?;
            assert_eq!(verdict, Err(reason.disclosed()), "{what}");
            heard.reason(&attack.mail.verifier, reason, what)
        };
    let from = |port: &Port, element: ChainElement| Announcement {
        element,
        connection: attack.tuple(port),
    };
    let forged = |position: u32| ChainElement {
        position,
        value: [9; 16],
    };

    let port = attack.port()?;
    let unknown = SessionId::from_bytes(random());
    refused(
        "no such session",
        from(&port, at(2)),
        unknown,
        Refusal::UnknownSession,
    )?;
    refused(
        "a forged element",
        from(&port, forged(2)),
        session,
        Refusal::ChainMismatch,
    )?;
    let moved = ChainElement {
        position: 3,
        value: at(2).value,
    };
    refused(
        "an element at another place",
        from(&port, moved),
        session,
        Refusal::ChainMismatch,
    )?;
    refused(
        "a gap of 65",
        from(&port, at(66)),
        session,
        Refusal::ChainGap,
    )?;
    refused(
        "beyond the end",
        from(&port, forged(201)),
        session,
        Refusal::ChainExhausted,
    )?;
    refused(
        "the position of the first",
        from(&port, forged(1)),
        session,
        Refusal::ChainReplayed,
    )?;
    refused(
        "position 0",
        from(&port, forged(0)),
        session,
        Refusal::ChainReplayed,
    )?;

    let foreign: [SocketAddr; 3] = [
        (attack.mail.stranger.ipv4(), port.address.port()).into(),
        ([127, 0, 0, 1], port.address.port()).into(),
        (attack.mail.mailhost.ipv4(), port.address.port()).into(),
    ];
    for client in foreign {
        let mut announcement = from(&port, at(2));
        announcement.connection.client = client;
        refused(
            "a foreign address",
            announcement,
            session,
            Refusal::ForeignAddress,
        )?;
    }
    let mut announcement = from(&port, at(2));
    announcement.connection.server.set_port(22);
    refused(
        "another port",
        announcement,
        session,
        Refusal::WrongServerAddress,
    )?;
    attack.reset(port);

    // The twins: none of that has used anything up. A gap of 64 is allowed.
    let port = attack.port()?;
    assert_eq!(channel.announce(session, from(&port, at(2)))?, Ok(()));
    let heard = listen(&attack.mail.verifier)?;
    let verdict = channel.announce(session, from(&port, at(2)))?;
    assert_eq!(verdict, Err(Refusal::ChainReplayed));
    heard.reason(&attack.mail.verifier, Refusal::ChainReplayed, "replayed")?;
    let heard = listen(&attack.mail.verifier)?;
    let verdict = channel.announce(session, from(&port, at(3)))?;
    assert_eq!(verdict, Err(Refusal::AlreadyAnnounced));
    heard.reason(
        &attack.mail.verifier,
        Refusal::AlreadyAnnounced,
        "announced twice",
    )?;
    let _connection = attack.served(port, "alice")?;
    let port = attack.port()?;
    assert_eq!(channel.announce(session, from(&port, at(67)))?, Ok(()));
    attack.served(port, "alice")?;
    // The last element, and nothing after it.
    for position in [131, 195, 200] {
        let port = attack.port()?;
        assert_eq!(
            channel.announce(session, from(&port, at(position)))?,
            Ok(())
        );
        attack.served(port, "alice")?;
    }
    let port = attack.port()?;
    let verdict = channel.announce(session, from(&port, forged(201)))?;
    assert_eq!(verdict, Err(Refusal::ChainExhausted));
    attack.reset(port);
    Ok(())
}

#[test]
fn only_what_is_announced_now_and_by_its_own_address_is_admitted() -> Result {
    let attack = Attack::new()?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    attack.granted(&mut channel, &mut asked, &key)?;
    let session = id_of(&asked.sign(&key)?);

    // Left alone until it has expired.
    let late = attack.port()?;
    let announcement = attack.announcement(&mut asked, &late)?;
    let keeper = listen(&attack.mail.keeper)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));

    // Another port, and the same port of another host.
    let announced = attack.port()?;
    let announcement = attack.announcement(&mut asked, &announced)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));
    attack.reset(attack.port()?);
    let stranger = &attack.mail.stranger;
    let same_port = SocketAddr::new(stranger.ipv4().into(), announced.address.port());
    attack.reset(Port::at(stranger, same_port)?);
    attack.served(announced, "alice")?;

    // Withdrawn; a withdrawal of another session's changes nothing.
    let withdrawn = attack.port()?;
    let announcement = attack.announcement(&mut asked, &withdrawn)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));
    assert_eq!(channel.withdraw(session, announcement.connection)?, Ok(()));
    attack.reset(withdrawn);
    let kept = attack.port()?;
    let announcement = attack.announcement(&mut asked, &kept)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));
    let other = SessionId::from_bytes(random());
    let verdict = channel.withdraw(other, announcement.connection)?;
    assert!(matches!(verdict, Ok(()) | Err(Refusal::UnknownSession)));
    attack.served(kept, "alice")?;

    // A session that was closed announces nothing more.
    let mut closed = attack.asked("alice")?;
    attack.granted(&mut channel, &mut closed, &key)?;
    let closed_session = id_of(&closed.sign(&key)?);
    assert_eq!(channel.close(closed_session)?, Ok(()));
    let port = attack.port()?;
    let announcement = attack.announcement(&mut closed, &port)?;
    let verdict = channel.announce(closed_session, announcement)?;
    assert_eq!(verdict, Err(Refusal::SessionEnded));
    attack.reset(port);

    keeper.line(&attack.mail.keeper, &["never came", "expired=1"])?;
    attack.reset(late);
    // The session is as good as before.
    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));
    attack.served(port, "alice")?;
    Ok(())
}

#[test]
fn a_host_speaks_for_its_own_sessions_only() -> Result {
    let attack = Attack::new()?;
    let (mailhost, stranger) = (&attack.mail.mailhost, &attack.mail.stranger);
    let key = attack.user_key("alice")?;
    let stranger_key = Identity::fresh();
    mailhost.run([
        "usher",
        "host",
        "add",
        "stranger",
        "--key",
        &stranger_key.public().to_openssh(),
        "--address",
        &stranger.ipv4().to_string(),
    ])?;
    mailhost.run(["usher", "policy", "apply"])?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let _working = attack.granted(&mut channel, &mut asked, &key)?;
    let session = id_of(&asked.sign(&key)?);
    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));

    // All that laptop's session has, in stranger's hands: its id, its next element, its addresses.
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

#[test]
fn a_closed_sessions_connections_end_when_it_would_have_and_another_sessions_do_not() -> Result {
    let attack = Attack::new()?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut other = attack.asked("alice")?;
    let mut others = attack.granted(&mut channel, &mut other, &key)?;
    let mut asked = attack.asked("alice")?;
    asked.statement.expires = now() + 15;
    let mut connection = attack.granted(&mut channel, &mut asked, &key)?;
    // As a client does that has opened the next one.
    assert_eq!(channel.close(id_of(&asked.sign(&key)?))?, Ok(()));
    still_works(&mut connection)?;
    let keeper = listen(&attack.mail.keeper)?;
    keeper.line(&attack.mail.keeper, &["session ended", "expired"])?;
    assert!(still_works(&mut connection).is_err());
    still_works(&mut others)
}
