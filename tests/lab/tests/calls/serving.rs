//! Processes that become their users, and who may serve at all.

use crate::service::{
    ACCOUNT_UID, Client, Result, as_account, fenced, has_fence, reads_mail, shared, start_at,
    start_service, with_capabilities,
};
use usher_lab::{ALICE, BOB, Mail, PATIENCE, Signal, eventually};

const THREADED: &str = include_str!("../../programs/threaded.c");

fn refused(mail: &Mail, user: &str) -> Result<String> {
    let output = mail
        .laptop
        .command(["usher", "connect", "mailhost:calls"])
        .user(user)
        .run()?;
    assert!(!output.status.success(), "{output:?}");
    Ok(output.stderr)
}

#[test]
fn without_lsm_programs_calls_refuse_and_programs_are_served() -> Result {
    let mail = shared()?;
    if has_fence(&mail)? {
        println!("skipped: this kernel runs LSM programs");
        return Ok(());
    }
    let mut service = as_account(&mail, &["/var/lib/service", "7000", "fork"])?;
    let said = service.read_past("\n", PATIENCE)?;
    assert!(said.starts_with("set_accept_mode: errno 95: "), "{said}");
    for word in ["LSM programs", "`program`", "usher doctor"] {
        assert!(said.contains(word), "{said}");
    }
    let warned = mail
        .keeper
        .wait_log("services with an `account` are refused", PATIENCE)?;
    assert!(warned, "the keeper says nothing");
    let applied = mail.mailhost.run(["usher", "policy", "apply"])?.stderr;
    assert!(
        applied.contains("sessions with `service calls`, `service single` are refused: "),
        "{applied}"
    );
    // No process would serve the connection: it is refused, and not left waiting.
    let client = refused(&mail, "alice")?;
    assert!(
        client.contains("`program` instead of an `account`"),
        "{client}"
    );
    reads_mail(&mail, "alice")
}

#[test]
fn a_settled_process_serves_all_connections_of_its_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let _service = start_service(&mail, &["fork"])?;
    let mut alice = Client::connect(&mail, "alice")?;
    let uid = ALICE.mailhost_uid;
    for text in [
        format!("for {uid} alice at calls from laptop key SHA256:"),
        "principals []".into(),
        format!(" Uid:\t{uid}\t{uid}\t{uid}\t{uid} "),
        format!(" Gid:\t{uid}\t{uid}\t{uid}\t{uid} "),
        "CapPrm:\t0000000000000000".into(),
        "CapAmb:\t0000000000000000".into(),
        "NoNewPrivs:\t1".into(),
    ] {
        assert!(
            alice.greeting.contains(&text),
            "{text:?} is not in {:?}",
            alice.greeting
        );
    }
    alice.echo("the hive has swarmed")?;
    let mut bob = Client::connect(&mail, "bob")?;
    assert!(
        bob.greeting
            .contains(&format!("for {} bob", BOB.mailhost_uid)),
        "{}",
        bob.greeting
    );
    assert_ne!(alice.pid()?, bob.pid()?);
    bob.echo("forty lanterns")?;
    // Served after the first: the process takes one at a time.
    let pid = alice.pid()?;
    alice.connection.close_input();
    let again = Client::connect(&mail, "alice")?;
    assert_eq!(again.pid()?, pid);
    // Not permitted by mailhost's policy.
    let carol = refused(&mail, "carol")?;
    assert!(carol.contains("does not permit"), "{carol}");
    let who = mail.mailhost.run(["usher", "who"])?.stdout;
    assert!(who.contains(&pid.to_string()), "{who}");
    Ok(())
}

#[test]
fn a_key_is_told_by_the_fingerprint_that_ssh_keygen_shows() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let _service = start_service(&mail, &["fork"])?;
    let alice = Client::connect(&mail, "alice")?;
    let shown = mail
        .laptop
        .run_as(
            "alice",
            ["ssh-keygen", "-l", "-f", "/home/alice/.ssh/id_ed25519.pub"],
        )?
        .stdout;
    let fingerprint = shown.split(' ').nth(1).ok_or("no fingerprint")?;
    assert!(
        alice.greeting.contains(&format!("key {fingerprint} ")),
        "{}",
        alice.greeting
    );
    Ok(())
}

#[test]
fn each_connection_has_a_process_in_the_style_connection() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let _service = start_at(&mail, "7001", &["fork"])?;
    let mut first = Client::connect_to(&mail, "alice", "mailhost:single")?;
    let mut second = Client::connect_to(&mail, "alice", "mailhost:single")?;
    assert_ne!(first.pid()?, second.pid()?);
    first.echo("one")?;
    second.echo("two")?;
    Ok(())
}

#[test]
fn processes_forked_beforehand_each_take_a_user() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let _service = start_service(&mail, &["prefork", "2"])?;
    let mut alice = Client::connect(&mail, "alice")?;
    let mut bob = Client::connect(&mail, "bob")?;
    assert_ne!(alice.pid()?, bob.pid()?);
    alice.echo("one")?;
    bob.echo("two")?;
    Ok(())
}

#[test]
fn a_user_whose_process_ended_gets_another_one() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let _service = start_service(&mail, &["fork"])?;
    let mut alice = Client::connect(&mail, "alice")?;
    alice.connection.write("end\n")?;
    let pid = alice.pid()?;
    let again = Client::connect(&mail, "alice")?;
    assert_ne!(again.pid()?, pid);
    Ok(())
}

#[test]
fn disabling_a_user_ends_only_the_users_own_process() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let _service = start_service(&mail, &["fork"])?;
    let alice = Client::connect(&mail, "alice")?;
    let mut bob = Client::connect(&mail, "bob")?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    let pid = alice.pid()?;
    eventually("alice's process has ended", || {
        Ok(mail
            .mailhost
            .processes()?
            .iter()
            .all(|process| process.pid != pid))
    })?;
    bob.echo("still here")?;
    assert!(refused(&mail, "alice")?.contains("disabled"));
    mail.mailhost.run(["usher", "user", "enable", "alice"])?;
    Client::connect(&mail, "alice")?.echo("back")?;
    Ok(())
}

#[test]
fn a_restarted_keeper_finds_the_service_and_its_processes() -> Result {
    let Some(mut mail) = fenced()? else {
        return Ok(());
    };
    let _service = start_service(&mail, &["fork"])?;
    let mut alice = Client::connect(&mail, "alice")?;
    mail.keeper.kill(Signal::KILL)?;
    mail.keeper.wait(PATIENCE)?;
    alice.echo("without a keeper")?;
    mail.keeper.start()?;
    let pid = alice.pid()?;
    alice.connection.close_input();
    // The same process, found again in its user's cgroup, and a new one for another user.
    let mut again = Client::connect(&mail, "alice")?;
    assert_eq!(again.pid()?, pid);
    again.echo("the same")?;
    Client::connect(&mail, "bob")?.echo("another")?;
    Ok(())
}

#[test]
fn a_service_that_comes_back_serves_whom_the_queue_has_kept() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    let mut waiting = mail
        .laptop
        .command(["usher", "connect", "mailhost:calls"])
        .user("alice")
        .spawn()?;
    eventually("alice's connection waits", || {
        let who = mail.mailhost.run(["usher", "who"])?.stdout;
        Ok(who.contains("established"))
    })?;
    let _service = start_service(&mail, &["fork"])?;
    let greeting = waiting.read_past("\n", PATIENCE)?;
    assert!(
        greeting.contains(&format!("for {} alice", ALICE.mailhost_uid)),
        "{greeting}"
    );
    Ok(())
}

// Threat model: A76
#[test]
fn only_the_account_that_the_policy_names_is_let_serve() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    // Without capabilities, as another user, as root.
    let program = ["/var/lib/service", "7000", "fork"];
    let run = |user: &str| -> Result<String> {
        let output = mail
            .mailhost
            .command(program)
            .environment("LD_LIBRARY_PATH", usher_lab::LIBRARY_PATH)
            .user(user)
            .run()?;
        Ok(output.stdout)
    };
    let said = with_capabilities(&mail, "-all", &program)?.read_past("\n", PATIENCE)?;
    assert!(said.starts_with("set_accept_mode: errno 1: "), "{said}");
    // The port is reserved for the account.
    let said = run("bob")?;
    assert!(said.starts_with("bind: errno 13: "), "{said}");
    let root = mail
        .mailhost
        .command(program)
        .environment("LD_LIBRARY_PATH", usher_lab::LIBRARY_PATH)
        .run()?
        .stdout;
    assert!(root.starts_with("set_accept_mode: errno 13: "), "{root}");
    // Another port than the service's.
    let mut other = as_account(&mail, &["/var/lib/service", "7002", "fork"])?;
    let said = other.read_past("\n", PATIENCE)?;
    assert!(said.starts_with("set_accept_mode: errno 13: "), "{said}");
    let _service = start_service(&mail, &["fork"])?;
    let alice = Client::connect(&mail, "alice")?;
    assert!(alice.greeting.contains("alice"));
    let process = mail.mailhost.processes()?;
    assert!(process.iter().any(|process| process.uid == ACCOUNT_UID));
    Ok(())
}

// Threat model: A114
#[test]
fn a_users_process_has_no_keyring_or_socket_of_the_service() -> Result {
    let Some(mail) = fenced()? else {
        return Ok(());
    };
    mail.mailhost.compile_c(THREADED, "/var/lib/threaded")?;
    let mut service = as_account(&mail, &["/var/lib/threaded"])?;
    // The conversation of the thread that waits, and the service's key.
    assert_eq!(service.read_past("\n", PATIENCE)?, "1 1\n");
    let alice = Client::connect(&mail, "alice")?;
    assert_eq!(alice.greeting, "0 0\n");
    Ok(())
}

#[test]
fn a_users_new_group_is_that_of_the_next_sessions_process() -> Result {
    let Some(mut mail) = fenced()? else {
        return Ok(());
    };
    mail.mailhost
        .run(["groupadd", "--gid", "5000", "beekeepers"])?;
    let _service = start_service(&mail, &["fork"])?;
    let mut alice = Client::connect(&mail, "alice")?;
    assert!(!alice.greeting.contains(" 5000"), "{}", alice.greeting);
    alice.connection.write("end\n")?;
    mail.mailhost
        .run(["usermod", "--append", "--groups", "beekeepers", "alice"])?;
    mail.signer.kill(Signal::KILL)?;
    mail.signer.wait(PATIENCE)?;
    mail.signer.start()?;
    let alice = Client::connect(&mail, "alice")?;
    assert!(alice.greeting.contains(" 5000"), "{}", alice.greeting);
    Ok(())
}
