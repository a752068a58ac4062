//! Against the keeper, by whoever has the verifier.

use crate::attack::{Attack, Result, listen};
use crate::programs::{alice_reads, bytes, packet, python};
use usher_proto::ssh_key::{HashAlg, PublicKey};
use usher_proto::{
    ClientFrame, KEEPER_RECORD_SIZE, KeeperReply, KeeperRequest, Refusal, SessionId,
};

#[test]
fn the_keeper_believes_the_verifier_only_and_not_beyond_its_own_policy() -> Result {
    let mut attack = Attack::new()?;
    let mailhost = attack.mail.mailhost.clone();
    let records = "/run/usher/keeper/records.sock";
    // Not even root: the verifier in place stays.
    let close = KeeperRequest::Close {
        request: 1,
        session: SessionId::from_bytes([1; 16]),
        host: "laptop".parse()?,
    };
    let ask = |record: &[u8]| format!("tell(ask('{records}', {})[0])", packet(record));
    let heard = listen(&attack.mail.keeper)?;
    let lines = python(&mailhost, "root", &ask(&close.encode()))?;
    assert_eq!(lines, ["-"]);
    heard.line(
        &attack.mail.keeper,
        &["refused a verifier that is not ours"],
    )?;
    alice_reads(&attack.mail)?;

    // A verifier that was taken over: it can claim who is there, within the keeper's policy.
    mailhost.run(["useradd", "-o", "-u", "0", "-M", "toor"])?;
    let policy = "/etc/usher/policy.d/mail.policy";
    let text = mailhost.read(policy)?;
    let with_toor = text.replace(
        "member alice, bob;",
        "member alice, bob, toor, ghost, stray;",
    );
    mailhost.write(policy, with_toor)?;
    let key = mailhost.read("/etc/usher/users/alice/authorized_keys")?;
    for user in ["toor", "ghost"] {
        let folder = format!("/etc/usher/users/{user}");
        mailhost.run(["mkdir", &folder])?;
        mailhost.write(format!("{folder}/authorized_keys"), &key)?;
    }
    mailhost.run(["usher", "policy", "apply"])?;
    attack.mail.verifier.stop()?;
    let key_fingerprint = PublicKey::from_openssh(&key)?
        .fingerprint(HashAlg::Sha256)
        .sha256()
        .ok_or("no SHA-256")?;
    let open = |number: u8, user: &str, service: &str, host: &str| -> Result<KeeperRequest> {
        Ok(KeeperRequest::Open {
            request: u64::from(number),
            session: SessionId::from_bytes([number; 16]),
            user: user.parse()?,
            service: service.parse()?,
            host: host.parse()?,
            key_fingerprint: match number {
                10 => [2; 32],
                _ => key_fingerprint,
            },
            chain_anchor: [3; 16],
            token_anchor: [3; 11],
            chain_salt: [4; 16],
            chain_length: 8,
            expires: usher_lab::hostile::now() + 60,
            certificate: None,
        })
    };
    let cases = [
        (
            open(2, "carol", "imap", "laptop")?,
            Err(Refusal::UserNotPermitted),
        ),
        (
            open(3, "root", "imap", "laptop")?,
            Err(Refusal::UserNotPermitted),
        ),
        (
            open(4, "alice", "smtp", "laptop")?,
            Err(Refusal::UnknownService),
        ),
        (
            open(5, "alice", "imap", "elsewhere")?,
            Err(Refusal::HostNotPermitted),
        ),
        (
            open(6, "toor", "imap", "laptop")?,
            Err(Refusal::PrivilegedAccount),
        ),
        (
            open(7, "ghost", "imap", "laptop")?,
            Err(Refusal::NoLocalAccount),
        ),
        (
            open(9, "stray", "imap", "laptop")?,
            Err(Refusal::UnknownUser),
        ),
        (
            open(10, "alice", "imap", "laptop")?,
            Err(Refusal::UnknownKey),
        ),
        (close, Err(Refusal::UnknownSession)),
        (open(8, "alice", "imap", "laptop")?, Ok(())),
        (open(8, "alice", "imap", "laptop")?, Err(Refusal::Replayed)),
    ];
    let program: Vec<String> = cases
        .iter()
        .map(|(request, _)| ask(&request.encode()))
        .collect();
    let lines = python(&mailhost, "usher-verifier", &program.join("\n"))?;
    assert_eq!(lines.len(), cases.len());
    for ((request, expected), line) in cases.iter().zip(&lines) {
        let reply = bytes(line).and_then(|record| KeeperReply::decode(&record).ok());
        let number = request.request();
        let verdict = match reply {
            Some(KeeperReply::Verdict { request, verdict }) if request == number => verdict,
            other => panic!("{request:?}: {other:?}"),
        };
        assert_eq!(verdict, *expected, "{request:?}");
    }
    // What is no record ends the connection and nothing else.
    let mut unknown = close_record(&cases)?;
    unknown[1] = 200;
    let mut version = close_record(&cases)?;
    version[0] = 9;
    let mut padded = close_record(&cases)?;
    padded[KEEPER_RECORD_SIZE - 1] = 1;
    let frame = ClientFrame::Ping { request: 1 }.encode();
    let records = [unknown, version, padded, frame, vec![0; 255], vec![0; 4000]];
    let program: Vec<String> = records.iter().map(|record| ask(record)).collect();
    for line in python(&mailhost, "usher-verifier", &program.join("\n"))? {
        assert_eq!(line, "-");
    }
    attack.mail.verifier.start()?;
    alice_reads(&attack.mail)
}

fn close_record(cases: &[(KeeperRequest, std::result::Result<(), Refusal>)]) -> Result<Vec<u8>> {
    let close = cases
        .iter()
        .find(|(request, _)| matches!(request, KeeperRequest::Close { .. }));
    Ok(close.ok_or("no such case")?.0.encode().to_vec())
}
