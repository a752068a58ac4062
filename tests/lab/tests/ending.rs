//! How sessions end, and what says so: by the clock, by a host that no longer vouches for its user,
//! by an administrator. `usher who --recent` and the keeper's log give the reason.
#![forbid(unsafe_code)]

mod attack;
mod reading;
mod users;

use attack::{Attack, IMAP, Result, still_works};
use reading::{connect, is_gone, lives};
use users::{json, recent, refused};
use usher_lab::hostile::{Asked, Channel, Identity, Port, id_of, private_key};
use usher_lab::{ALICE, BOB, Host, Lab, Mail, PATIENCE, Running, Signal, eventually, in_time};
use usher_proto::{Chain, ChainElement, Notice, Refusal, ServerFrame, SessionId, SessionRequest};

const POLICY: &str = "/etc/usher/policy.d/mail.policy";

/// Adds a statement to mailhost's service and puts it in force.
fn demand(mail: &Mail, statement: &str) -> Result {
    let demanding = format!("listen 143; {statement}");
    mail.mailhost.replace(POLICY, "listen 143;", &demanding)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    Ok(())
}

fn ends(user: &str, reason: Refusal) -> (String, String) {
    (user.into(), reason.name().into())
}

/// The elements that a user's sessions have used.
fn used(mail: &Mail, user: &str) -> Result<u64> {
    let view = json(&mail.mailhost, &["who"])?;
    let sessions = view["sessions"].as_array().ok_or("no list")?.iter();
    let of_user = sessions.filter(|session| session["user"] == user);
    Ok(of_user.filter_map(|session| session["used"].as_u64()).sum())
}

#[test]
fn who_recent_tells_why_each_session_has_ended() -> Result {
    let mut mail = Lab::mail()?;
    let text = mail.mailhost.run(["usher", "who", "--recent"])?.stdout;
    assert!(text.contains("no session has ended"), "{text}");
    let mut alice = connect(&mail, "alice")?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    is_gone(&mail, &mut alice, ALICE)?;
    let mut bob = connect(&mail, "bob")?;
    mail.mailhost
        .write("/etc/usher/users/bob/authorized_keys", "")?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    is_gone(&mail, &mut bob, BOB)?;
    let ended = [
        ends("alice", Refusal::DisabledUser),
        ends("bob", Refusal::UnknownUser),
    ];
    assert_eq!(recent(&mail)?, ended);
    let text = mail.mailhost.run(["usher", "who", "--recent"])?.stdout;
    assert!(
        text.contains("the user is disabled on this server"),
        "{text}"
    );
    // Remembered over a restart for as long as the session is.
    mail.keeper.stop()?;
    mail.keeper.start()?;
    let mut after = recent(&mail)?;
    after.sort();
    assert_eq!(after, ended);
    Ok(())
}

#[test]
fn a_sessions_connections_end_when_it_expires() -> Result {
    let mail = Lab::mail()?;
    demand(&mail, "session 8s;")?;
    let mut alice = connect(&mail, "alice")?;
    lives(&mut alice)?;
    is_gone(&mail, &mut alice, ALICE)?;
    assert_eq!(recent(&mail)?, [ends("alice", Refusal::Expired)]);
    let mut again = connect(&mail, "alice")?;
    lives(&mut again)
}

// Threat model: A30
#[test]
fn only_users_disabled_on_the_server_lose_their_session() -> Result {
    let mail = Lab::mail()?;
    demand(&mail, "reauthenticate 6s;")?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    // There are no connections meanwhile: the elements are those that the server asks for.
    let (of_alice, of_bob) = (used(&mail, "alice")?, used(&mail, "bob")?);
    eventually("both have been authenticated again", || {
        Ok(used(&mail, "alice")? > of_alice + 2 && used(&mail, "bob")? > of_bob + 2)
    })?;
    lives(&mut alice)?;
    assert_eq!(recent(&mail)?, []);
    mail.laptop.run(["usher", "user", "disable", "alice"])?;
    is_gone(&mail, &mut alice, ALICE)?;
    let ended = recent(&mail)?;
    assert!(
        ended.contains(&ends("alice", Refusal::NotAuthenticatedAgain)),
        "{ended:?}"
    );
    assert!(!ended.iter().any(|(user, _)| user == "bob"), "{ended:?}");
    lives(&mut bob)
}

// Threat model: A30
#[test]
fn users_of_a_removed_host_are_cut_until_it_is_back() -> Result {
    let mut mail = Lab::mail()?;
    demand(&mail, "reauthenticate 6s;")?;
    let mut alice = connect(&mail, "alice")?;
    mail.courier.kill(Signal::STOP)?;
    is_gone(&mail, &mut alice, ALICE)?;
    assert_eq!(
        recent(&mail)?,
        [ends("alice", Refusal::NotAuthenticatedAgain)]
    );
    mail.courier.kill(Signal::CONT)?;
    lives(&mut connect(&mail, "alice")?)
}

/// Waits until the server asks for an element of a session.
fn asked_for(channel: &mut Channel, id: SessionId) -> Result {
    loop {
        match channel.receive()?.ok_or("the channel closed")? {
            ServerFrame::Notice(Notice::Reauthenticate { session }) if session == id => {
                return Ok(());
            }
            _ => {}
        }
    }
}

fn answer(
    channel: &mut Channel,
    session: SessionId,
    element: ChainElement,
) -> Result<std::result::Result<(), Refusal>> {
    Ok(channel.ask_about(session, SessionRequest::Reauthenticate(element))?)
}

// Threat model: A30
#[test]
fn an_element_authenticates_its_own_session_once() -> Result {
    let attack = Attack::new()?;
    let stranger = attack.add_stranger()?;
    demand(&attack.mail, "reauthenticate 8s;")?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut elsewhere = Channel::connect(&attack.mail.stranger, &attack.mail.mailhost, &stranger)?;
    let mut asked = attack.asked("alice")?;
    let mut connection = attack.granted(&mut channel, &mut asked, &key)?;
    let session = id_of(&asked.sign(&key)?);
    asked_for(&mut channel, session)?;

    let mut made_up = Chain::generate(256, [7; _], asked.chain.salt());
    let (_, second) = (made_up.next(), made_up.next().ok_or("no element")?);
    assert_eq!(
        answer(&mut channel, session, second)?,
        Err(Refusal::ChainMismatch)
    );
    let element = asked.chain.next().ok_or("no element")?;
    let stolen = answer(&mut elsewhere, session, element)?;
    assert_eq!(stolen, Err(Refusal::UnknownSession));
    assert_eq!(answer(&mut channel, session, element)?, Ok(()));
    assert_eq!(
        answer(&mut channel, session, element)?,
        Err(Refusal::ChainReplayed)
    );

    // Asked again and not answered.
    asked_for(&mut channel, session)?;
    still_works(&mut connection)?;
    let ended = loop {
        match channel.receive()?.ok_or("the channel closed")? {
            ServerFrame::Notice(Notice::SessionEnded {
                session: id,
                reason,
            }) if id == session => break reason,
            _ => {}
        }
    };
    assert_eq!(ended, Refusal::NotAuthenticatedAgain);
    assert!(still_works(&mut connection).is_err());
    Ok(())
}

#[test]
fn a_closed_sessions_connections_live_by_an_authenticated_one() -> Result {
    let attack = Attack::new()?;
    demand(&attack.mail, "reauthenticate 6s;")?;
    let key = attack.user_key("alice")?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let mut connection = attack.granted(&mut channel, &mut asked, &key)?;
    let mut next = attack.asked("alice")?;
    let _other = attack.granted(&mut channel, &mut next, &key)?;
    let (former, session) = (id_of(&asked.sign(&key)?), id_of(&next.sign(&key)?));
    assert_eq!(channel.close(former)?, Ok(()));
    for _ in 0..3 {
        asked_for(&mut channel, session)?;
        let element = next.chain.next().ok_or("no element")?;
        assert_eq!(answer(&mut channel, session, element)?, Ok(()));
        still_works(&mut connection)?;
    }
    assert_eq!(channel.close(session)?, Ok(()));
    eventually("it is cut", || Ok(still_works(&mut connection).is_err()))?;
    let ended = recent(&attack.mail)?;
    let cut = ends("alice", Refusal::NotAuthenticatedAgain);
    assert_eq!(
        ended.iter().filter(|ended| **ended == cut).count(),
        2,
        "{ended:?}"
    );
    Ok(())
}

/// The sessions that a list of a dry run or of an apply has.
fn sessions(said: &str, list: &str) -> Result<Vec<String>> {
    let view: serde_json::Value = serde_json::from_str(said)?;
    let list = view[list].as_array().ok_or("no list")?.iter();
    Ok(list
        .filter_map(|ended| ended["session"].as_str().map(str::to_owned))
        .collect())
}

/// Puts alice's keys in force, by which the one session ends and no other, as was said before.
fn ends_only(attack: &Attack, list: &str, ending: SessionId) -> Result {
    let host = &attack.mail.mailhost;
    host.write("/etc/usher/users/alice/authorized_keys", list)?;
    let dry = ["usher", "--json", "policy", "apply", "--dry-run"];
    let told = host.command(dry).run()?.stdout;
    assert_eq!(sessions(&told, "would_end")?, [ending.to_string()]);
    let told = host.run(["usher", "--json", "policy", "apply"])?.stdout;
    assert_eq!(sessions(&told, "ended")?, [ending.to_string()]);
    Ok(())
}

#[test]
fn a_closed_sessions_connections_outlive_the_last_open_one() -> Result {
    let attack = Attack::new()?;
    let (laptop, mailhost) = (&attack.mail.laptop, &attack.mail.mailhost);
    let former = mailhost.read("/etc/usher/users/alice/authorized_keys")?;
    let fresh = laptop.make_key("/root/fresh")?;
    let both = format!("{former}{fresh}");
    mailhost.write("/etc/usher/users/alice/authorized_keys", &both)?;
    mailhost.run(["usher", "policy", "apply"])?;

    let keys = (
        attack.user_key("alice")?,
        private_key(laptop, "/root/fresh")?,
    );
    let mut channel = attack.channel()?;
    let (mut one, mut other) = (attack.asked("alice")?, attack.asked("alice")?);
    let mut by_former = attack.granted(&mut channel, &mut one, &keys.0)?;
    let mut by_fresh = attack.granted(&mut channel, &mut other, &keys.1)?;
    let closed = id_of(&one.sign(&keys.0)?);
    assert_eq!(channel.close(closed)?, Ok(()));

    ends_only(&attack, &former, id_of(&other.sign(&keys.1)?))?;
    eventually("it is cut", || Ok(still_works(&mut by_fresh).is_err()))?;
    still_works(&mut by_former)?;
    // And what is closed ends by its own key.
    ends_only(&attack, "", closed)?;
    eventually("it is cut", || Ok(still_works(&mut by_former).is_err()))?;
    eventually("alice has no processes", || {
        let processes = attack.mail.mailhost.processes()?;
        Ok(!processes.iter().any(|p| p.uid == ALICE.mailhost_uid))
    })
}

/// This many seconds from now, as a policy writes it.
fn time_in(mail: &Mail, seconds: u32) -> Result<String> {
    let later = format!("+{seconds} seconds");
    let date = ["date", "-u", "-d", &later, "+%Y-%m-%dT%H:%M:%SZ"];
    Ok(mail.mailhost.run(date)?.stdout.trim().to_owned())
}

/// A connection of bob's, who is a guest until a time that `admit` is given and puts in force; and
/// that time.
fn guest(mail: &Mail, mut admit: impl FnMut(&str) -> Result) -> Result<(Running, String)> {
    in_time(|seconds| {
        let until = time_in(mail, seconds)?;
        admit(&until)?;
        let mut bob = connect(mail, "bob")?;
        lives(&mut bob)?;
        Ok((bob, until))
    })
}

/// Waits until the guest has gone, which must not be before the time.
fn goes_in_time(mail: &Mail, connection: &mut Running, until: &str) -> Result {
    is_gone(mail, connection, BOB)?;
    let now = time_in(mail, 0)?;
    assert!(now.as_str() >= until, "before its time: {now}, not {until}");
    Ok(())
}

/// Demands that no session but bob's has ended, and for this reason.
fn only_bob_has_ended(mail: &Mail, reason: Refusal) -> Result {
    let (ended, expected) = (recent(mail)?, ends("bob", reason));
    let only = ended.iter().all(|ended| *ended == expected);
    assert!(only && !ended.is_empty(), "{ended:?}");
    Ok(())
}

#[test]
fn a_guest_leaves_by_itself_and_is_not_let_in_again() -> Result {
    let mail = Lab::mail()?;
    let mut of_alice = connect(&mail, "alice")?;
    let mut former = "member alice, bob;".to_owned();
    let (mut of_bob, until) = guest(&mail, |until| {
        let users = format!("member alice; guest bob until {until};");
        mail.mailhost.replace(POLICY, &former, &users)?;
        former = users;
        mail.mailhost.run(["usher", "policy", "apply"])?;
        Ok(())
    })?;
    goes_in_time(&mail, &mut of_bob, &until)?;
    only_bob_has_ended(&mail, Refusal::GuestOver)?;
    let told = refused(&mail, "bob", "mailhost:imap")?;
    let said = "the user's time as a guest of this server is over";
    assert!(told.contains(said), "{told}");
    lives(&mut of_alice)?;
    let told = mail.mailhost.run(["usher", "policy", "check"])?.stderr;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let over = format!("`users mail`: the time of the guest bob was over at {until}");
    assert!(told.contains(&over), "{told}");
    Ok(())
}

#[test]
fn a_guest_of_the_client_is_not_signed_for_beyond_its_time() -> Result {
    let mail = Lab::mail()?;
    let policy = mail.laptop.read(POLICY)?;
    let members = "member alice, bob, carol;";
    assert!(policy.contains(members), "{policy}");
    let put = |until: &str| -> Result {
        let users = format!("member alice, carol; guest bob until {until};");
        mail.laptop.write(POLICY, policy.replace(members, &users))?;
        mail.laptop.run(["usher", "policy", "apply"])?;
        Ok(())
    };
    put("2020-01-01T00:00Z")?;
    let told = refused(&mail, "bob", "mailhost:imap")?;
    let said = "this machine's policy does not let the user connect";
    assert!(told.contains(said), "{told}");

    // The session that it opens ends with the time, by the server.
    let (mut of_bob, until) = guest(&mail, put)?;
    goes_in_time(&mail, &mut of_bob, &until)?;
    only_bob_has_ended(&mail, Refusal::Expired)?;
    Ok(())
}

/// Writes another key for laptop into mailhost's policy, which is not in force by that.
fn exchange_key(laptop: &Host, mailhost: &Host) -> Result {
    let former = laptop.read("/etc/usher/host_key.pub")?;
    let key = former.split(' ').nth(1).ok_or("no key")?;
    let fresh = Identity::fresh().public().to_openssh();
    let fresh = fresh.split(' ').nth(1).ok_or("no key")?;
    let exchange = format!("sed -i 's#{key}#{fresh}#' /etc/usher/policy.d/*.policy");
    mailhost.run(["sh", "-c", &exchange])?;
    Ok(())
}

#[test]
fn the_sessions_of_a_host_end_when_its_key_is_another_ones() -> Result {
    let mail = Lab::mail()?;
    let mailhost = &mail.mailhost;
    let mut alice = connect(&mail, "alice")?;
    mailhost.run(["usher", "policy", "apply"])?;
    lives(&mut alice)?;

    exchange_key(&mail.laptop, mailhost)?;
    let dry = ["usher", "--json", "policy", "apply", "--dry-run"];
    let told = mailhost.command(dry).run()?.stdout;
    assert_eq!(sessions(&told, "would_end")?.len(), 1, "{told}");
    let told = mailhost.run(["usher", "--json", "policy", "apply"])?.stdout;
    assert_eq!(sessions(&told, "ended")?.len(), 1, "{told}");
    is_gone(&mail, &mut alice, ALICE)?;
    let ended = recent(&mail)?;
    assert_eq!(
        ended.last(),
        Some(&ends("alice", Refusal::HostNotPermitted))
    );
    Ok(())
}

#[test]
fn a_removed_hosts_sessions_end_when_a_keeper_starts() -> Result {
    let mut attack = Attack::new()?;
    let stranger = attack.add_stranger()?;
    let host = &attack.mail.mailhost;
    host.replace(POLICY, "hosts laptop;", "hosts laptop, stranger;")?;
    host.run(["usher", "policy", "apply"])?;
    let (alice, bob) = (attack.user_key("alice")?, attack.user_key("bob")?);
    let mut channel = attack.channel()?;
    let mut of_laptop = attack.granted(&mut channel, &mut attack.asked("alice")?, &alice)?;

    let near = &attack.mail.stranger;
    let mut channel = Channel::connect(near, host, &stranger)?;
    let mut asked = Asked::right("bob", "imap", stranger.public(), host, IMAP, 256)?;
    let port = Port::any(near, near.ipv4())?;
    let first = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.open_session(&asked.sign(&bob)?, first)?, Ok(()));
    let mut of_stranger = attack.served(port, "bob")?;

    // A keeper after another ends nothing by itself.
    attack.mail.keeper.stop()?;
    attack.mail.keeper.start()?;
    assert_eq!(recent(&attack.mail)?, []);
    attack.mail.keeper.stop()?;
    let mail = &attack.mail;
    exchange_key(&mail.laptop, &mail.mailhost)?;
    let applied = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(applied.status.code(), Some(3), "{applied:?}");
    still_works(&mut of_laptop)?;
    attack.mail.keeper.start()?;
    eventually("it is cut", || Ok(still_works(&mut of_laptop).is_err()))?;
    let ended = [ends("alice", Refusal::HostNotPermitted)];
    assert_eq!(recent(&attack.mail)?, ended);
    still_works(&mut of_stranger)
}

/// Has a line of mailhost's accounts changed, as an administrator does who leaves processes alone.
fn change_account(mail: &Mail, edit: &str) -> Result {
    mail.mailhost.run(["sed", "-i", edit, "/etc/passwd"])?;
    Ok(())
}

// Threat model: A87
#[test]
fn sessions_of_a_deleted_account_end_and_its_user_is_refused() -> Result {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    // A connection by the session that she has, before anything else has noticed.
    let mut again = connect(&mail, "alice")?;
    again.end()?;
    mail.mailhost.run(["cp", "/etc/passwd", "/root/passwd"])?;
    change_account(&mail, "/^alice:/d")?;
    let destination = ["usher", "connect", "mailhost:imap"];
    let mut at_once = mail.laptop.command(destination).user("alice").spawn()?;
    assert!(at_once.wait(PATIENCE)?.is_some(), "the connection hangs");
    is_gone(&mail, &mut alice, ALICE)?;
    let ended = recent(&mail)?;
    assert!(
        ended.contains(&ends("alice", Refusal::NoLocalAccount)),
        "{ended:?}"
    );
    // The keeper believes for a second that there is an account: until then she is reset.
    eventually("alice is refused", || {
        let said = mail.laptop.command(destination).user("alice").run()?;
        assert!(!said.status.success(), "{said:?}");
        Ok(said.stderr.contains("did not accept"))
    })?;
    lives(&mut bob)?;
    assert!(!recent(&mail)?.iter().any(|(user, _)| user == "bob"));
    mail.mailhost.run(["cp", "/root/passwd", "/etc/passwd"])?;
    lives(&mut connect(&mail, "alice")?)
}

// Threat model: A87
#[test]
fn a_recreated_account_with_another_uid_is_another_account() -> Result {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    change_account(&mail, "s/^alice:x:2001:2001:/alice:x:2101:2001:/")?;
    mail.mailhost.run(["chown", "-R", "alice", "/home/alice"])?;
    is_gone(&mail, &mut alice, ALICE)?;
    assert_eq!(recent(&mail)?, [ends("alice", Refusal::NoLocalAccount)]);
    let mut anew = connect(&mail, "alice")?;
    // The keeper learns of a worker a moment after the worker's client.
    eventually("the new account has a worker", || {
        let view = json(&mail.mailhost, &["who"])?;
        let workers = view["workers"].as_array().ok_or("no list")?;
        Ok(workers.iter().any(|worker| worker["uid"] == 2101))
    })?;
    lives(&mut anew)?;
    lives(&mut bob)
}
