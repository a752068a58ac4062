//! Users whose key is in an ssh-agent: signed for while a process of theirs lends it, and not
//! otherwise, whatever the agent or the lender says.
#![forbid(unsafe_code)]

mod agent;

use agent::{
    KEY, Result, connect, forget_sessions, lend, lender, listed, loans, refused, register, served,
    socket, ssh_agent, topology,
};
use usher_lab::{Lab, Mail, PATIENCE, Signal, eventually};
use usher_proto::{FromLender, LocalRequest, Refusal, ToLender};

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

/// An agent that answers each request with these bytes, and waits when there are none.
const FAKE: &str = r#"
import os, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(sys.argv[1])
listener.listen()
kept = []
while True:
    connection, _ = listener.accept()
    length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    if not connection.recv(length, socket.MSG_WAITALL):
        continue
    answer = bytes.fromhex(open("answer").read())
    if answer:
        try:
            connection.sendall(answer)
        except BrokenPipeError:
            pass
        connection.close()
    else:
        kept.append(connection)
"#;

fn fake_agent(mail: &Mail) -> Result<usher_lab::Running> {
    let agent = mail
        .laptop
        .command(["python3", "-c", FAKE, &socket("alice")])
        .user("alice")
        .spawn()?;
    eventually("the agent listens", || {
        Ok(mail.laptop.path(socket("alice")).exists())
    })?;
    Ok(agent)
}

/// An ssh-agent's message.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(1 + body.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &[kind], body].concat()
}

fn string(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}

#[test]
fn a_key_with_destination_constraints_is_told_as_the_cause() -> Result {
    let mail = topology()?;
    let _agent = ssh_agent(&mail, "alice", &[])?;
    let key = mail.laptop.read("/etc/usher/host_key.pub")?;
    mail.laptop
        .write("/home/alice/known_hosts", format!("mailhost {key}"))?;
    let add = |options: &[&str]| {
        let command = [&["ssh-add", "-q"], options, &[KEY]].concat();
        let command = mail.laptop.command(command);
        let command = command.environment("SSH_AUTH_SOCK", socket("alice"));
        command.user("alice").succeed()
    };
    add(&["-H", "/home/alice/known_hosts", "-h", "mailhost"])?;
    let mut lender = lend(&mail, "alice")?;
    let told = refused(&mail, "alice", "agent_refused")?;
    assert!(told.contains("destination constraints"), "{told}");
    let cause = "the agent has the key and refuses to sign with it";
    eventually("the agent's user learns the cause", || {
        Ok(lender.stderr()?.contains(cause))
    })?;
    // Without the key it is another cause; and added without constraints, it signs.
    let remove = mail.laptop.command(["ssh-add", "-q", "-D"]);
    let remove = remove.environment("SSH_AUTH_SOCK", socket("alice"));
    remove.user("alice").succeed()?;
    refused(&mail, "alice", "agent_refused")?;
    eventually("the agent's user learns the cause", || {
        Ok(lender.stderr()?.contains("the agent does not have the key"))
    })?;
    add(&[])?;
    served(&mail, "alice")
}

// Threat model: A62
#[test]
fn an_agents_wrong_answer_is_no_signature() -> Result {
    let mail = topology()?;
    let _agent = fake_agent(&mail)?;
    let mut lender = lend(&mail, "alice")?;
    let signature = |value: &[u8]| [string(b"ssh-ed25519"), string(value)].concat();
    let cases: [(&str, Vec<u8>); 12] = [
        ("rubbish", vec![0xff; 64]),
        ("a greeting", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
        ("nothing in it", vec![0; 4]),
        (
            "half of it",
            message(14, &string(&signature(&[1; 64])))[..40].to_vec(),
        ),
        (
            "too much",
            [&[0, 0x10, 0, 0], &vec![7; 1 << 20][..]].concat(),
        ),
        (
            "too much of a signature",
            message(14, &string(&vec![7; 5000])),
        ),
        ("keys", message(12, &[0; 4])),
        ("success", message(6, &[])),
        ("failure", message(5, &[])),
        ("an empty signature", message(14, &string(&[]))),
        (
            "a signature that is none",
            message(14, &string(&signature(&[1; 64]))),
        ),
        (
            "a signature of another kind",
            message(
                14,
                &string(&[string(b"ssh-rsa"), string(&[1; 256])].concat()),
            ),
        ),
    ];
    let before = mail.signer.log()?.len();
    for (what, answer) in cases {
        let answer: String = answer.iter().map(|byte| format!("{byte:02x}")).collect();
        mail.laptop.write("/home/alice/answer", answer)?;
        let told =
            refused(&mail, "alice", "agent_refused").map_err(|error| format!("{what}: {error}"))?;
        assert!(told.contains("did not sign"), "{what}: {told}");
    }
    // By the same signer and the same loan: bob, and alice's own agent.
    served(&mail, "bob")?;
    assert!(!lender.has_ended()?, "{}", lender.stderr()?);
    assert!(!mail.signer.log()?[before..].contains("signer ready"));
    assert_eq!(loans(&mail)?, 1);
    drop(_agent);
    mail.laptop.run(["rm", &socket("alice")])?;
    let _agent = ssh_agent(&mail, "alice", &[KEY])?;
    served(&mail, "alice")
}

// Threat model: A62
#[test]
fn an_agent_that_does_not_answer_keeps_nobody_else_waiting() -> Result {
    let mail = topology()?;
    mail.laptop.write("/home/alice/answer", "")?;
    let agent = fake_agent(&mail)?;
    let mut lender = lend(&mail, "alice")?;
    let begin = || {
        mail.laptop
            .command(["usher", "connect", "mailhost:imap"])
            .user("alice")
            .spawn()
    };
    let mut waiting = [begin()?, begin()?, begin()?];
    eventually("the agent is asked", || {
        Ok(lender.stderr()?.contains("signing for imap"))
    })?;
    served(&mail, "bob")?;
    for connection in &mut waiting {
        assert!(!connection.has_ended()?);
    }
    // Given up by the lender in 25 s; the agent is asked once for all who waited.
    for connection in &mut waiting {
        let ended = connection.wait(PATIENCE)?.ok_or("still waits")?;
        assert_eq!(ended.code(), Some(1));
    }
    assert_eq!(lender.stderr()?.matches("signing for imap").count(), 1);
    assert!(lender.stderr()?.contains("has not answered"));
    drop(agent);
    mail.laptop.run(["rm", &socket("alice")])?;
    let _agent = ssh_agent(&mail, "alice", &[KEY])?;
    served(&mail, "alice")
}

/// A lender that answers as it is told: lines of `hexadecimal`, or `fd` and that, to be sent when
/// the signer asks; `now` and that at once. Prints what it hears.
const LENDER: &str = r#"
import array, os, socket, sys
signer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
signer.connect("/run/usher/signer/applications.sock")
lend, when, answer = sys.argv[1:]
def send(packet, *descriptors):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    signer.sendmsg([bytes.fromhex(packet)], rights if descriptors else [])
def hear():
    try:
        heard = signer.recv(8192)
    except ConnectionResetError:
        heard = b""
    print("heard", heard.hex() or "-", flush=True)
    return heard
send(lend, *([0] if when == "lent-fd" else []))
if hear()[1:2] == b"\x85":
    if when == "asked":
        hear()
    if answer != "-":
        send(answer, *([0] if when == "fd" else []))
    hear()
"#;

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// Threat model: A62
#[test]
fn a_lender_that_breaks_the_rules_loses_only_its_loan() -> Result {
    let mail = topology()?;
    let lend = hexadecimal(&LocalRequest::Lend.encode());
    let signature = FromLender::Signature(vec![7; 83]).encode();
    let begin = |when: &str, answer: &[u8]| {
        let answer = match hexadecimal(answer) {
            empty if empty.is_empty() => "-".into(),
            answer => answer,
        };
        mail.laptop
            .command(["python3", "-c", LENDER, &lend, when, &answer])
            .user("alice")
            .spawn()
    };
    let last = |lender: &mut usher_lab::Running| -> Result<Option<ToLender>> {
        let heard = lender.read_past("\n", PATIENCE)?;
        let word = heard.split_whitespace().nth(1).ok_or("nothing")?;
        let bytes: Vec<u8> = (0..word.len() / 2)
            .filter_map(|place| u8::from_str_radix(word.get(2 * place..2 * place + 2)?, 16).ok())
            .collect();
        Ok(ToLender::decode(&bytes).ok())
    };
    let refused_for = |reason| Some(ToLender::Refused(reason));
    // An answer without a question ends the connection at once.
    for (when, answer, reason) in [
        ("now", &signature[..], Refusal::Malformed),
        ("now", &LocalRequest::Lend.encode(), Refusal::Malformed),
        ("fd", &signature, Refusal::Malformed),
        ("now", &[0xff; 5000], Refusal::Oversized),
    ] {
        let mut lender = begin(when, answer)?;
        assert_eq!(last(&mut lender)?, Some(ToLender::Lent));
        assert_eq!(last(&mut lender)?, refused_for(reason), "{answer:?}");
        refused(&mail, "alice", "agent_unavailable")?;
    }
    let mut lender = begin("lent-fd", &[])?;
    assert_eq!(last(&mut lender)?, refused_for(Refusal::Malformed));
    // No answer when asked: a packet that is none, another version, cut short, and more.
    for (answer, reason) in [
        (&[1][..], Refusal::Truncated),
        (&[2, 7], Refusal::UnknownVersion),
        (&[1, 99], Refusal::Malformed),
        (&signature[..20], Refusal::Truncated),
        (&[&signature[..], &[0]].concat(), Refusal::Malformed),
    ] {
        let mut lender = begin("asked", answer)?;
        assert_eq!(last(&mut lender)?, Some(ToLender::Lent));
        refused(&mail, "alice", "agent_unavailable")?;
        assert!(matches!(last(&mut lender)?, Some(ToLender::Sign { .. })));
        assert_eq!(last(&mut lender)?, refused_for(reason), "{answer:?}");
    }
    // A signature that is none leaves the loan.
    let mut lender = begin("asked", &signature)?;
    assert_eq!(last(&mut lender)?, Some(ToLender::Lent));
    refused(&mail, "alice", "agent_refused")?;
    assert!(matches!(last(&mut lender)?, Some(ToLender::Sign { .. })));
    assert!(listed(&mail, "alice")?.ends_with("agent, lent"));
    drop(lender);
    // Silence ends it.
    let mut lender = begin("asked", &[])?;
    assert_eq!(last(&mut lender)?, Some(ToLender::Lent));
    let output = connect(&mail, "alice")?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(matches!(last(&mut lender)?, Some(ToLender::Sign { .. })));
    assert_eq!(last(&mut lender)?, refused_for(Refusal::AgentRefused));
    // The same packets in turn, by the program that keeps the rules.
    let _agent = ssh_agent(&mail, "alice", &[KEY])?;
    let _lender = lend_again(&mail)?;
    served(&mail, "alice")?;
    served(&mail, "bob")
}

fn lend_again(mail: &Mail) -> Result<usher_lab::Running> {
    eventually("the former loan has ended", || {
        Ok(listed(mail, "alice")?.ends_with("agent, not lent"))
    })?;
    let lender = lender(mail, "alice")?;
    eventually("the agent is lent", || {
        Ok(listed(mail, "alice")?.ends_with("agent, lent"))
    })?;
    Ok(lender)
}
