//! Agents and lenders that answer wrongly, late or not at all.

use usher_lab::{Mail, PATIENCE, eventually};
use usher_proto::{FromLender, LocalRequest, Refusal, ToLender};

use crate::agent::{
    KEY, Result, connect, lend, lender, listed, loans, refused, served, socket, ssh_agent, topology,
};

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
