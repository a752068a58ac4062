//! Tokens in SYNs: a user's connections after the first are not announced; where tokens are refused or
//! do not pass, they are announced as before.
#![forbid(unsafe_code)]

mod greeter;

use std::io::ErrorKind;

use greeter::{Result, connect, connects, has_ticket, sessions, topology};
use usher_lab::{ALICE, BOB, Mail, PATIENCE, Role, Running, eventually};

/// A program of alice that has connected by her ticket and remembers the address.
fn who_remembers(mail: &Mail) -> Result<Running> {
    connect(mail, "alice", 1, 1)?;
    has_ticket(mail, 1)?;
    let mut program = connects(mail, "alice", "1", "1").spawn()?;
    program.read_past("1 connections", PATIENCE)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 1);
    Ok(program)
}

/// Ends alice's session on the server without notifying her host.
fn end_session_in_silence(mail: &mut Mail) -> Result {
    mail.courier.stop()?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    mail.mailhost.run(["usher", "user", "enable", "alice"])?;
    mail.courier.start()?;
    assert_eq!(mail.laptop.number(Role::Signer, "tickets")?, 1);
    Ok(())
}

#[test]
fn after_the_first_connection_nothing_is_announced() -> Result {
    let mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 0);
    // Another process of hers, and one that connects again and again.
    connect(&mail, "alice", 1, 1)?;
    connect(&mail, "alice", 1, 20)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 21);
    // Each user's first is announced.
    connect(&mail, "bob", 1, 1)?;
    has_ticket(&mail, 2)?;
    connect(&mail, "bob", 1, 1)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 22);
    let mut used = sessions(&mail)?;
    used.sort();
    assert_eq!(
        used,
        [("alice".into(), 1, Some(21)), ("bob".into(), 1, Some(1))]
    );
    // A user without permission gets no further than before.
    let carol = mail
        .laptop
        .command(["usher", "connect", "mailhost:greeter"])
        .user("carol")
        .run()?;
    assert!(!carol.status.success());
    Ok(())
}

// Threat model: A44
#[test]
fn two_users_of_one_host_are_told_apart() -> Result {
    let mail = topology()?;
    for user in ["alice", "bob"] {
        connect(&mail, user, 1, 1)?;
    }
    has_ticket(&mail, 2)?;
    for _ in 0..3 {
        for user in [ALICE, BOB] {
            let greeting = mail
                .laptop
                .command(["usher", "connect", "mailhost:greeter"])
                .user(user.name)
                .run()?
                .stdout;
            assert_eq!(greeting, format!("{}\n", user.mailhost_uid));
        }
    }
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 6);
    Ok(())
}

#[test]
fn a_token_that_is_refused_is_followed_by_an_announcement() -> Result {
    let mut mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    end_session_in_silence(&mut mail)?;
    connect(&mail, "alice", 1, 2)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_unknown")?, 1);
    // Both announced, in one session, which gets no tokens for a while.
    assert_eq!(sessions(&mail)?, [("alice".into(), 2, None)]);
    assert_eq!(mail.laptop.number(Role::Signer, "tickets")?, 0);
    Ok(())
}

#[test]
fn a_program_tries_a_remembered_address_with_one_token() -> Result {
    let mut mail = topology()?;
    let mut program = who_remembers(&mail)?;
    program.write("again\n")?;
    program.read_past("1 connections", PATIENCE)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 2);
    end_session_in_silence(&mut mail)?;
    program.write("again\n")?;
    program.read_past("1 connections", PATIENCE)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_unknown")?, 1);
    assert_eq!(mail.laptop.number(Role::Signer, "tickets")?, 0);
    Ok(())
}

#[test]
fn many_refused_tokens_at_once_make_one_new_session() -> Result {
    let mut mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    end_session_in_silence(&mut mail)?;
    connect(&mail, "alice", 5, 1)?;
    assert_eq!(sessions(&mail)?, [("alice".into(), 5, None)]);
    Ok(())
}

#[test]
fn a_ticket_and_its_session_end_when_policy_forbids_them() -> Result {
    let mail = topology()?;
    let mut program = who_remembers(&mail)?;
    connect(&mail, "bob", 1, 1)?;
    has_ticket(&mail, 2)?;
    // Only alice is not permitted any longer.
    mail.laptop.write(
        "/etc/usher/policy.d/greeter.policy",
        "users greeted { member bob; }\n\
         client greeter { users greeted; service greeter at mailhost port 7000; }\n",
    )?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    assert_eq!(mail.laptop.number(Role::Signer, "tickets")?, 1);
    eventually("her session is closed, and his is not", || {
        let users = sessions(&mail)?.into_iter().map(|(user, ..)| user);
        Ok(users.eq(["bob"]))
    })?;
    program.write("again\n")?;
    // EACCES.
    let refused = program.read_past("0 connections", PATIENCE)?;
    assert!(refused.contains("errno 13: refused"), "{refused}");
    connect(&mail, "bob", 1, 1)?;
    // Her token and his: she has sent no other.
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 2);
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_unknown")?, 0);
    Ok(())
}

#[test]
fn disabling_a_user_cuts_connections_by_token() -> Result {
    let mail = topology()?;
    let connect_imap = || {
        mail.laptop
            .command(["usher", "connect", "mailhost:imap"])
            .user("alice")
            .spawn()
    };
    connect_imap()?.read_past("Logged in as alice", PATIENCE)?;
    has_ticket(&mail, 1)?;
    let mut living = connect_imap()?;
    living.read_past("Logged in as alice", PATIENCE)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 1);
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    assert!(living.wait(PATIENCE)?.is_some(), "the connection lives");
    let refused = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .run()?;
    assert!(
        !refused.status.success() && refused.stderr.contains("disabled"),
        "{refused:?}"
    );
    mail.mailhost.run(["usher", "user", "enable", "alice"])?;
    connect_imap()?.read_past("Logged in as alice", PATIENCE)?;
    Ok(())
}

#[test]
fn tokens_outlive_keeper_and_verifier_but_not_the_signer() -> Result {
    let mut mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    // A worker accepts, so the keeper may be away.
    mail.keeper.stop()?;
    mail.verifier.stop()?;
    connect(&mail, "alice", 1, 5)?;
    // Its listener ends with the keeper, as with `systemctl stop`, and the worker with the listener.
    mail.keeper.start()?;
    mail.verifier.start()?;
    connect(&mail, "alice", 1, 5)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 10);
    mail.signer.restart()?;
    assert_eq!(mail.laptop.number(Role::Signer, "tickets")?, 0);
    connect(&mail, "alice", 1, 1)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 10);
    has_ticket(&mail, 1)?;
    Ok(())
}

/// The links of the programs that read tokens at LOCAL_IN.
const LINKS: [&str; 4] = [
    "/sys/fs/bpf/usher/link_check_token_ipv4_0",
    "/sys/fs/bpf/usher/link_check_token_ipv4_1",
    "/sys/fs/bpf/usher/link_check_token_ipv6_0",
    "/sys/fs/bpf/usher/link_check_token_ipv6_1",
];

/// The readers of tokens on mailhost: links at LOCAL_IN, or filters at an interface.
fn tokens_are_read(mail: &Mail) -> Result<String> {
    let filters = ["tc", "filter", "show", "dev", "eth0", "ingress"];
    let mut found = mail.mailhost.run(filters)?.stdout;
    let links = LINKS.into_iter();
    found.extend(links.filter(|link| mail.mailhost.path(link).exists()));
    Ok(found)
}

// Threat model: A17
#[test]
fn connections_are_announced_while_the_filter_is_missing() -> Result {
    let mut mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    // A keeper would put it back.
    mail.keeper.stop()?;
    assert!(!tokens_are_read(&mail)?.is_empty());
    for interface in ["lo", "eth0"] {
        mail.mailhost
            .command(["tc", "qdisc", "del", "dev", interface, "clsact"])
            .run()?;
    }
    for link in LINKS {
        let path = mail.mailhost.path(link);
        if !path.exists() {
            continue;
        }
        // A link whose pin is gone is detached some time later, by the kernel's worker.
        let detach = ["bpftool", "link", "detach", "pinned", link];
        let detached = mail.mailhost.command(detach).run()?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                println!("skipped: this kernel guards the program, also from root");
                return Ok(());
            }
            done => done?,
        }
        assert!(detached.status.success(), "{detached:?}");
    }
    assert_eq!(tokens_are_read(&mail)?, "");
    // The connection can use no token and, without a keeper, no announcement.
    let refused = mail
        .laptop
        .command(["usher", "connect", "mailhost:greeter"])
        .user("alice")
        .run()?;
    assert!(
        refused
            .stderr
            .contains("the server's keeper does not answer"),
        "{refused:?}"
    );
    mail.keeper.start()?;
    assert!(tokens_are_read(&mail)?.contains("check_token"));
    connect(&mail, "alice", 1, 2)?;
    // Announced for a while, even with the filter, because the token was refused.
    assert_eq!(mail.laptop.number(Role::Signer, "tickets")?, 0);
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 0);
    Ok(())
}

#[test]
fn two_hundred_connections_at_once_are_served() -> Result {
    let mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    connect(&mail, "alice", 200, 1)?;
    Ok(())
}

#[test]
fn a_session_is_renewed_before_its_tokens_are_used_up() -> Result {
    let mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    for opened in 2..=4 {
        // Some may be announced, because the signer is slower than the program for a moment.
        eventually("the next session is open", || {
            connect(&mail, "alice", 1, 100)?;
            Ok(mail.keeper.log()?.matches("session opened").count() == opened)
        })?;
    }
    // More than two chains have, and fewer than three, none of which was used up.
    let by_token = mail.mailhost.number(Role::Keeper, "token_accepted")?;
    assert!((2 * 1024..3 * 1024).contains(&by_token), "{by_token}");
    Ok(())
}

#[test]
fn connections_faster_than_renewals_are_announced_without_pause() -> Result {
    let mail = topology()?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 1)?;
    connect(&mail, "alice", 8, 400)?;
    // Some may have been announced, and a token drawn long before its SYN may have been refused. But the
    // path lets tokens pass, so there is a ticket within seconds: by the last renewal, or by a later
    // connection.
    eventually("the signer has the ticket again", || {
        connect(&mail, "alice", 1, 1)?;
        Ok(mail.laptop.number(Role::Signer, "tickets")? == 1)
    })?;
    let before = mail.mailhost.number(Role::Keeper, "token_accepted")?;
    eventually("a connection by token", || {
        connect(&mail, "alice", 1, 1)?;
        Ok(mail.mailhost.number(Role::Keeper, "token_accepted")? > before)
    })?;
    Ok(())
}
