//! Against the keeper, by whoever has the verifier.

use crate::attack::{Attack, IMAP, Result, alice_reads, listen};
use crate::programs::{bytes, packet, python};
use usher_lab::hostile::{Asked, Identity};
use usher_lab::{Role, eventually};
use usher_proto::log_record::{AuthenticationRecord, Record};
use usher_proto::ssh_key::PrivateKey;
use usher_proto::{
    Authentication, Authenticator, ClientBody, ClientFrame, KEEPER_RECORD_SIZE, KeeperBody,
    KeeperReply, KeeperRequest, Opening, Refusal, SessionId, SessionRequest, Statement,
};

// Threat model: A132
#[test]
fn the_keeper_checks_the_verifiers_claims_by_its_own_policy() -> Result {
    let mut attack = Attack::new()?;
    let mailhost = attack.mail.mailhost.clone();
    let records = "/run/usher/keeper/records.sock";
    // Not even root: the verifier in place stays.
    let close = KeeperRequest {
        request: 1,
        host: "laptop".parse()?,
        body: KeeperBody::Session(SessionId::from_bytes([1; 16]), SessionRequest::Close),
    };
    let ask = |record: &[u8]| format!("tell(ask('{records}', {})[0])", packet(record));
    let heard = listen(&attack.mail.keeper)?;
    let lines = python(&mailhost, "root", &ask(&close.encode()))?;
    assert_eq!(lines, ["-"]);
    heard.line(
        &attack.mail.keeper,
        &["its process does not run as the verifier"],
    )?;
    alice_reads(&attack.mail)?;

    // A verifier that was taken over: it can say nothing that the user has not signed, and that
    // within the keeper's policy.
    mailhost.run(["useradd", "-o", "-u", "0", "-M", "toor"])?;
    let policy = "/etc/usher/policy.d/mail.policy";
    let text = mailhost.read(policy)?;
    let with_toor = text.replace(
        "member alice, bob;",
        "member alice, bob, toor, ghost, stray;",
    );
    mailhost.write(policy, with_toor)?;
    let key = mailhost.read("/etc/usher/users/alice/authorized_keys")?;
    for user in ["toor", "ghost", "carol"] {
        let folder = format!("/etc/usher/users/{user}");
        mailhost.run(["mkdir", "-p", &folder])?;
        mailhost.write(format!("{folder}/authorized_keys"), &key)?;
    }
    mailhost.run(["usher", "policy", "apply"])?;
    attack.mail.verifier.stop()?;
    let recorded = || mailhost.number(Role::Recorder, "authentications");
    let before = recorded()?;
    let (alice, bob) = (attack.user_key("alice")?, attack.user_key("bob")?);
    let asked = |user: &str, service: &str| {
        let client = attack.laptop_key.public();
        Asked::right(user, service, client, &mailhost, IMAP, 8).map(|asked| asked.statement)
    };
    // Alice's key is on the lists of carol, toor and ghost, too.
    let open = |user: &str| Signed::new(asked(user, "imap")?, &alice);
    let bent = |bend: &dyn Fn(&mut Statement)| {
        let mut statement = asked("alice", "imap")?;
        bend(&mut statement);
        Signed::new(statement, &alice)
    };
    let old = usher_lab::hostile::now() - 120;
    let refused = |signed: Signed, refusal| (signed.request("laptop"), Err(refusal));
    let granted = open("alice")?;
    let mut cases = vec![
        refused(open("carol")?, Refusal::UserNotPermitted),
        refused(open("root")?, Refusal::UnknownUser),
        refused(open("toor")?, Refusal::PrivilegedAccount),
        refused(open("ghost")?, Refusal::NoLocalAccount),
        refused(open("stray")?, Refusal::UnknownUser),
        refused(
            Signed::new(asked("alice", "smtp")?, &alice)?,
            Refusal::UnknownService,
        ),
        refused(
            Signed::new(asked("alice", "imap")?, &bob)?,
            Refusal::UnknownKey,
        ),
        refused(bent(&|statement| statement.issued = old)?, Refusal::Stale),
        refused(
            bent(&|statement| statement.client_host_key = Identity::fresh().public())?,
            Refusal::WrongClientHost,
        ),
        refused(
            bent(&|statement| statement.server_host_key = Identity::fresh().public())?,
            Refusal::WrongServerHost,
        ),
        refused(
            bent(&|statement| statement.server.set_port(IMAP + 1))?,
            Refusal::WrongServerAddress,
        ),
        (
            open("alice")?.request("elsewhere"),
            Err(Refusal::HostNotPermitted),
        ),
        (close.clone(), Err(Refusal::UnknownSession)),
    ];
    // The presence of a user who has signed nothing, or something else.
    let by_bob = open("alice")?;
    let statement = by_bob.opening.statement.clone();
    let by_bob = Signed {
        record: Signed::new(statement, &bob)?.record,
        ..by_bob
    };
    cases.push(refused(by_bob, Refusal::Malformed));
    for (record, refusal) in [
        (
            Signed::new(asked("bob", "imap")?, &bob)?.record,
            Refusal::Malformed,
        ),
        (open("alice")?.record, Refusal::Malformed),
        (
            open("alice")?.with_another_signature()?.record,
            Refusal::Malformed,
        ),
        (b"nonsense".to_vec(), Refusal::Malformed),
        (Vec::new(), Refusal::Truncated),
    ] {
        let claimed = Signed {
            record,
            ..open("alice")?
        };
        cases.push(refused(claimed, refusal));
    }
    cases.push((granted.request("laptop"), Ok(())));
    cases.push((granted.request("laptop"), Err(Refusal::Replayed)));
    let program: Vec<String> = cases
        .iter()
        .map(|(request, _)| ask(&request.encode()))
        .collect();
    let lines = python(&mailhost, "usher-verifier", &program.join("\n"))?;
    assert_eq!(lines.len(), cases.len());
    for ((request, expected), line) in cases.iter().zip(&lines) {
        let reply = bytes(line).and_then(|record| KeeperReply::decode(&record).ok());
        let verdict = match reply {
            Some(KeeperReply::Answer {
                request: number,
                verdict,
            }) if request.request == number => verdict.map(drop),
            other => panic!("{request:?}: {other:?}"),
        };
        assert_eq!(verdict, *expected, "{request:?}");
    }
    let said = attack.mail.recorder.log()?;
    let lied = "the verifier does not say what was signed";
    assert_eq!(said.matches(lied).count(), 3, "{said}");
    // Statements that users have signed at another time do not fill the log either.
    assert_eq!(recorded()?, before + 1);
    let sessions = mailhost.run(["usher", "who"])?.stdout;
    assert_eq!(sessions.matches("0/8").count(), 1, "{sessions}");
    // One that asks, goes and comes again has an authenticator recorded once.
    let again = packet(&open("alice")?.request("laptop").encode());
    let goes = format!("peer = reach('{records}'); send(peer, {again}); peer.close()");
    python(&mailhost, "usher-verifier", &[goes.as_str(); 5].join("\n"))?;
    eventually("the authenticator is recorded", || {
        Ok(recorded()? == before + 2)
    })?;
    // Notices of the sessions of those that have gone may come first; 82 is their kind.
    let asks = format!(
        "said, peer = ask('{records}', {again})\n\
         while said[2:4] == '82': said = answer(peer)\n\
         tell(said)"
    );
    let replayed = python(&mailhost, "usher-verifier", &asks)?;
    let reply = bytes(&replayed[0]).map(|record| KeeperReply::decode(&record));
    let Some(Ok(KeeperReply::Answer { verdict, .. })) = reply else {
        panic!("{replayed:?}");
    };
    assert_eq!((verdict, recorded()?), (Err(Refusal::Replayed), before + 2));
    // Bytes that are no record end the connection and nothing else.
    let close = close.encode();
    let mut unknown = close.clone();
    unknown[1] = 200;
    let mut version = close.clone();
    version[0] = 9;
    let mut padded = close;
    padded[KEEPER_RECORD_SIZE - 1] = 1;
    let (request, body) = (1, ClientBody::Ping);
    let frame = ClientFrame { request, body }.encode();
    let records = [unknown, version, padded, frame, vec![0; 255], vec![0; 4000]];
    let program: Vec<String> = records.iter().map(|record| ask(record)).collect();
    for line in python(&mailhost, "usher-verifier", &program.join("\n"))? {
        assert_eq!(line, "-");
    }
    attack.mail.verifier.start()?;
    alice_reads(&attack.mail)
}

/// A verifier's record of an authenticator, and the fields in it.
struct Signed {
    opening: Opening,
    record: Vec<u8>,
}

impl Signed {
    fn new(statement: Statement, key: &PrivateKey) -> Result<Self> {
        let authenticator = Authenticator::sign(&statement, key)?;
        let record = AuthenticationRecord {
            public_key: key.public_key().to_bytes()?,
            authenticator,
        };
        Ok(Self {
            opening: Opening::new(record.verify()?, usher_lab::hostile::now())?,
            record: Record::Authentication(record).encode(),
        })
    }

    /// The record, of a signature that is not one.
    fn with_another_signature(self) -> Result<Self> {
        let mut record = Record::decode(&self.record)?;
        let Record::Authentication(forged) = &mut record else {
            return Err("the end of a session".into());
        };
        let last = forged.authenticator.signature.last_mut();
        *last.ok_or("no signature")? ^= 1;
        Ok(Self {
            record: record.encode(),
            ..self
        })
    }

    /// Each with the same number: one is asked after the other.
    fn request(&self, host: &str) -> KeeperRequest {
        KeeperRequest {
            request: 7,
            host: host.parse().expect("a host's name"),
            body: KeeperBody::Open {
                authentication: Box::new(Authentication {
                    opening: self.opening.clone(),
                    record: self.record.clone(),
                }),
                first: None,
            },
        }
    }
}
