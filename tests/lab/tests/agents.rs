//! Users whose key is in an ssh-agent: signed for while a process of theirs lends it, and not
//! otherwise, whatever the agent or the lender says.
#![forbid(unsafe_code)]

mod agent;
#[path = "agents/kinds.rs"]
mod kinds;
#[path = "agents/misbehaving.rs"]
mod misbehaving;

use agent::{
    KEY, Result, forget_sessions, lend, lender, listed, loans, refused, register, served, socket,
    ssh_agent, topology,
};
use usher_lab::{Lab, PATIENCE, Signal, eventually};

#[test]
fn a_lent_agent_signs_for_its_user_until_the_loan_ends() -> Result {
    let mut mail = topology()?;
    // The signer has no key of hers.
    let kept = mail.laptop.read("/var/lib/usher/keys/alice")?;
    assert!(kept.starts_with("ssh-ed25519 "), "{kept}");
    let told = refused(&mail, "alice", "agent_unavailable")?;
    assert!(told.contains("usher agent"), "{told}");
    assert!(listed(&mail, "alice")?.ends_with("agent, not lent"));
    assert!(listed(&mail, "bob")?.ends_with("private key"));

    let mut agent = ssh_agent(&mail, "alice", &[KEY])?;
    let mut lender = lend(&mail, "alice")?;
    assert!(listed(&mail, "alice")?.ends_with("agent, lent"));
    let doctor = mail.laptop.command(["usher", "doctor"]).run()?.stdout;
    assert!(
        doctor.contains("ok       ssh-agents: alice lends one"),
        "{doctor}"
    );
    served(&mail, "alice")?;
    // In the same session: her agent is not asked again, and is not needed.
    lender.kill(Signal::TERM)?;
    eventually("the loan ends", || {
        Ok(listed(&mail, "alice")?.ends_with("agent, not lent"))
    })?;
    served(&mail, "alice")?;
    forget_sessions(&mut mail)?;
    refused(&mail, "alice", "agent_unavailable")?;

    // Lent again; then the agent has gone, and then another has her key.
    let mut lender = lend(&mail, "alice")?;
    agent.end()?;
    mail.laptop.run(["rm", "-f", &socket("alice")])?;
    refused(&mail, "alice", "agent_refused")?;
    let _agent = ssh_agent(&mail, "alice", &[KEY])?;
    served(&mail, "alice")?;
    let said = lender.stderr()?;
    assert!(said.contains("signing for imap"), "{said}");
    assert!(
        !said.contains("must be touched"),
        "its key is a file: {said}"
    );

    // By the private key again.
    forget_sessions(&mut mail)?;
    mail.laptop.run([
        "usher",
        "user",
        "add",
        "alice",
        "--private-key",
        "/home/alice/.ssh/id_ed25519",
    ])?;
    served(&mail, "alice")
}

#[test]
fn an_agents_unit_restarts_only_for_a_missing_signer() -> Result {
    let mut mail = topology()?;
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/systemd/user/usher-agent.service"
    );
    let unit = std::fs::read_to_string(unit)?;
    let final_ones = unit
        .lines()
        .find_map(|line| line.strip_prefix("RestartPreventExitStatus="))
        .ok_or("the unit ends at no exit status")?;
    let ends = |code: Option<i32>| {
        let code = code.map(|code| code.to_string()).unwrap_or_default();
        final_ones.split(' ').any(|one| one == code)
    };
    let run = |socket: Option<String>| {
        let mut agent = mail.laptop.command(["usher", "agent"]).user("alice");
        if let Some(socket) = socket {
            agent = agent.environment("SSH_AUTH_SOCK", socket);
        }
        agent.run()
    };
    for none in [None, Some(socket("alice"))] {
        let output = run(none)?;
        assert!(output.stderr.contains("SSH_AUTH_SOCK"), "{output:?}");
        assert!(ends(output.status.code()), "{output:?}");
    }
    let _agent = ssh_agent(&mail, "alice", &[KEY])?;
    mail.signer.stop()?;
    let run = mail.laptop.command(["usher", "agent"]).user("alice");
    let output = run.environment("SSH_AUTH_SOCK", socket("alice")).run()?;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(!ends(output.status.code()));
    Ok(())
}

// Threat model: A59
#[test]
fn nobodys_loan_signs_for_another_user() -> Result {
    let mail = topology()?;
    // bob's agent has alice's key, and he lends it.
    mail.laptop
        .run(["cp", "/home/alice/.ssh/id_ed25519", "/home/bob/alices"])?;
    mail.laptop.run(["chown", "bob", "/home/bob/alices"])?;
    let _agent = ssh_agent(&mail, "bob", &["alices", KEY])?;
    // A user whose key the signer has may not lend, nor may an unknown one.
    for user in ["bob", "root"] {
        let output = mail
            .laptop
            .command(["usher", "agent"])
            .environment("SSH_AUTH_SOCK", socket("bob"));
        let output = match user {
            "root" => output.run()?,
            _ => output.user(user).run()?,
        };
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stderr.contains("--agent-key"), "{output:?}");
    }
    assert_eq!(loans(&mail)?, 0);
    register(&mail, "bob", "/home/bob/.ssh/id_ed25519.pub")?;
    let _lender = lend(&mail, "bob")?;
    refused(&mail, "alice", "agent_unavailable")?;
    served(&mail, "bob")?;
    // Registered with a key that his agent has and that is not known as his on the server.
    mail.laptop
        .run(["cp", "/home/alice/.ssh/id_ed25519.pub", "/root/alices.pub"])?;
    register(&mail, "carol", "/root/alices.pub")?;
    refused(&mail, "carol", "agent_unavailable")?;
    Ok(())
}

#[test]
fn an_agent_signs_for_one_thing_and_the_signer_for_the_rest() -> Result {
    let mail = Lab::mail()?;
    let (laptop, mailhost) = (&mail.laptop, &mail.mailhost);
    laptop.run_as(
        "alice",
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", "banking"],
    )?;
    mailhost.write("/root/banking.pub", laptop.read("/home/alice/banking.pub")?)?;
    mailhost.write(
        "/etc/usher/policy.d/vault.policy",
        "service vault { program \"/bin/echo\" \"the vault\"; listen 7100; style connection; \
         users mail; hosts laptop; keys banking; }\n",
    )?;
    laptop.write(
        "/etc/usher/policy.d/vault.policy",
        "client vault { users mail; service vault at mailhost port 7100; key banking; }\n",
    )?;
    mail.apply()?;
    let add = ["usher", "user", "add", "alice", "--key", "banking"];
    mailhost.run([&add[..], &["--public-key", "/root/banking.pub"]].concat())?;
    laptop.run([&add[..], &["--agent-key", "/home/alice/banking.pub"]].concat())?;
    let vault = || {
        let connect = laptop.command(["usher", "connect", "mailhost:vault"]);
        connect.user("alice").run()
    };
    let refused = vault()?;
    assert!(refused.stderr.contains("usher agent"), "{refused:?}");
    served(&mail, "alice")?;
    let _agent = ssh_agent(&mail, "alice", &["banking"])?;
    let mut lender = lend(&mail, "alice")?;
    let served = vault()?;
    assert!(served.stdout.contains("the vault"), "{served:?}");
    let said = lender.stderr()?;
    assert_eq!(said.matches("signing for vault").count(), 1, "{said}");
    assert!(!said.contains("signing for imap"), "{said}");
    Ok(())
}

#[test]
fn who_lends_has_the_signer_look_at_no_key_of_others() -> Result {
    let mail = topology()?;
    let _agent = ssh_agent(&mail, "alice", &[KEY])?;
    // It can open a file whose name it knows, and cannot list them.
    let folder = "/var/lib/usher/keys";
    mail.laptop.run(["chmod", "u-r", folder])?;
    let alices = lend(&mail, "alice")?;
    served(&mail, "alice")?;
    // bob's key the signer has.
    let _bobs = ssh_agent(&mail, "bob", &[])?;
    let mut others = lender(&mail, "bob")?;
    let ended = others.wait(PATIENCE)?.ok_or("still lends")?;
    let told = others.stderr()?;
    assert_eq!(ended.code(), Some(1), "{told}");
    assert!(told.contains("--agent-key"), "{told}");
    assert!(!mail.signer.log()?.contains("cannot look at"));
    mail.laptop.run(["chmod", "u+r", folder])?;
    drop(alices);
    Ok(())
}

#[test]
fn the_newest_loan_counts_and_the_former_one_is_told_so() -> Result {
    let mail = topology()?;
    let _agent = ssh_agent(&mail, "alice", &[])?;
    // This one's agent lacks the key.
    let mut former = lend(&mail, "alice")?;
    refused(&mail, "alice", "agent_refused")?;
    let told = former.stderr()?;
    assert!(
        told.contains("not signed: the agent does not have the key"),
        "{told}"
    );
    let newer = lend(&mail, "alice")?;
    let ended = former.wait(PATIENCE)?.ok_or("the former one stays")?;
    assert!(ended.success(), "{}", former.stderr()?);
    agent::add_key(&mail, "alice", KEY)?;
    served(&mail, "alice")?;
    drop(newer);
    Ok(())
}
