//! Announcements that are refused or withdrawn.

use std::net::SocketAddr;

use crate::attack::{Attack, Result, listen};
use usher_lab::Role;
use usher_lab::hostile::{Port, id_of, random};
use usher_proto::{Announcement, ChainElement, Refusal, SessionId};

// Threat model: A12
#[test]
fn a_wrong_element_is_refused_and_the_right_one_still_counts() -> Result {
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

    // The twins: none of the refusals has used anything up. A gap of 64 is allowed.
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

// Threat model: A28
#[test]
fn only_current_announcements_of_the_own_address_are_admitted() -> Result {
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

    // Withdrawn; withdrawing another session's announcement changes nothing.
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
    // The session still works.
    let port = attack.port()?;
    let announcement = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.announce(session, announcement)?, Ok(()));
    attack.served(port, "alice")?;
    Ok(())
}

#[test]
fn a_session_without_a_valid_first_connection_is_not_recorded() -> Result {
    let attack = Attack::new()?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let records = || {
        let mailhost = &attack.mail.mailhost;
        mailhost.number(Role::Recorder, "authentications")
    };
    let before = records()?;
    let port = attack.port()?;
    let mut asked = attack.asked("alice")?;
    let authenticator = asked.sign(&key)?;
    let right = Announcement {
        element: asked.chain.next().ok_or("no element")?,
        connection: attack.tuple(&port),
    };
    let (mut foreign, mut other) = (right, right);
    foreign
        .connection
        .client
        .set_ip(attack.mail.stranger.ipv4().into());
    other.connection.server.set_port(22);
    for (first, reason) in [
        (foreign, Refusal::ForeignAddress),
        (other, Refusal::WrongServerAddress),
    ] {
        let heard = listen(&attack.mail.verifier)?;
        let verdict = channel.open_session(&authenticator, first)?;
        assert_eq!(verdict, Err(reason.disclosed()));
        heard.reason(&attack.mail.verifier, reason, "a first connection")?;
        assert_eq!(records()?, before);
        let session = id_of(&authenticator);
        assert_eq!(channel.close(session)?, Err(Refusal::UnknownSession));
    }
    // The twin: the same authenticator with its own connection.
    assert_eq!(channel.open_session(&authenticator, right)?, Ok(()));
    assert_eq!(records()?, before + 1);
    attack.served(port, "alice")?;

    // If it turns out to be announced already, the session is recorded by then, and closed.
    let port = attack.port()?;
    let mut asked = [attack.asked("alice")?, attack.asked("alice")?];
    let [opened, refused] = asked.each_mut().map(|asked| {
        let authenticator = asked.sign(&key)?;
        let first = Announcement {
            element: asked.chain.next().ok_or("no element")?,
            connection: attack.tuple(&port),
        };
        let verdict = channel.open_session(&authenticator, first)?;
        Result::<_>::Ok((id_of(&authenticator), verdict))
    });
    assert_eq!(opened?.1, Ok(()));
    let (session, verdict) = refused?;
    assert_eq!(verdict, Err(Refusal::AlreadyAnnounced));
    assert_eq!(channel.close(session)?, Err(Refusal::SessionEnded));
    attack.served(port, "alice")?;
    Ok(())
}
