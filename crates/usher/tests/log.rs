//! `usher log` as an auditor uses it, with the real ssh-keygen.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use usher_log::{AuthenticationRecord, Log, Record, SignedRecord, SigningKey};
use usher_proto::ssh_key::PrivateKey;
use usher_proto::{
    Authenticator, Chain, HostPublicKey, NAMESPACE, Refusal, SESSION_END_NAMESPACE, SessionEnd,
    SessionId, Statement, session_id,
};

const KINDS: [&[&str]; 3] = [
    &["-t", "ed25519"],
    &["-t", "ecdsa", "-b", "256"],
    &["-t", "ecdsa", "-b", "384"],
];

fn statement(user: &str) -> Statement {
    let chain = Chain::generate(8, [1; 16], [2; 16]);
    Statement {
        user: user.parse().unwrap(),
        service: "imap".parse().unwrap(),
        client_host_key: HostPublicKey::from_bytes([0xc1; 32]),
        server_host_key: HostPublicKey::from_bytes([0x5e; 32]),
        server: "192.0.2.2:143".parse().unwrap(),
        issued: 1_800_000_000,
        expires: 1_800_003_600,
        nonce: [3; 16],
        chain_anchor: chain.anchor(),
        token_anchor: [0; 11],
        chain_length: chain.length(),
        chain_salt: chain.salt(),
    }
}

/// A key pair NAME, NAME.pub that ssh-keygen made.
fn key(folder: &Path, name: &str, kind: &[&str]) -> PrivateKey {
    loop {
        let made = Command::new("ssh-keygen")
            .current_dir(folder)
            .args(["-q", "-N", "", "-C", name, "-f", name])
            .args(kind)
            .status()
            .expect("ssh-keygen (Debian package openssh-client) is needed");
        assert!(made.success());
        match PrivateKey::from_openssh(fs::read_to_string(folder.join(name)).unwrap()) {
            Ok(key) => return key,
            // ssh-key 0.6.7 cannot read one ECDSA key in 256: those whose number begins with a zero.
            Err(error) => assert!(kind.contains(&"ecdsa"), "{error}"),
        }
        fs::remove_file(folder.join(name)).unwrap();
    }
}

/// A folder with a log `log` of one record of each of three users, with keys of three kinds.
fn world() -> (TempDir, Log) {
    let folder = tempfile::tempdir().unwrap();
    let key_of_log = key(folder.path(), "log-key", KINDS[0]);
    let signing = SigningKey::new("mailhost.example.org/usher", &key_of_log).unwrap();
    let mut log = Log::open(&folder.path().join("log"), signing).unwrap();
    for (user, kind) in ["alice", "bob", "carol"].iter().zip(KINDS) {
        let key = key(folder.path(), user, kind);
        let signed = Authenticator::sign(&statement(user), &key).unwrap();
        append(&mut log, signed);
    }
    (folder, log)
}

fn append(log: &mut Log, signed: Authenticator) {
    let record = Record::Authentication(AuthenticationRecord {
        public_key: signed.verify_signature().unwrap().public_key,
        authenticator: signed,
    });
    let (record, _) = SignedRecord::new(&record.encode()).unwrap();
    log.append(&[record]).unwrap();
}

fn usher(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_usher"))
        .current_dir(folder)
        .arg("log")
        .args(arguments)
        .args(["--log", "log"])
        .output()
        .unwrap()
}

fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = usher(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a command that has to fail with a status.
fn fails(folder: &Path, arguments: &[&str], status: i32) -> String {
    let output = usher(folder, arguments);
    assert_eq!(
        output.status.code(),
        Some(status),
        "{arguments:?}: {output:?}"
    );
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Runs the command of docs/PROTOCOL.md, and returns whether it succeeds.
fn ssh_keygen_verifies(folder: &Path, user: &str) -> bool {
    ssh_keygen_verifies_for(NAMESPACE, folder, user)
}

fn ssh_keygen_verifies_for(namespace: &str, folder: &Path, identity: &str) -> bool {
    Command::new("ssh-keygen")
        .current_dir(folder)
        .args([
            "-Y",
            "verify",
            "-f",
            "allowed_signers",
            "-I",
            identity,
            "-n",
            namespace,
        ])
        .args(["-s", "statement.sig"])
        .stdin(File::open(folder.join("statement")).unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

// Threat model: A144
#[test]
fn ssh_keygen_verifies_exported_records_but_no_changed_ones() {
    let (folder, _log) = world();
    for (index, user) in ["alice", "bob", "carol"].iter().enumerate() {
        let name = format!("out-{user}");
        let text = succeeds(
            folder.path(),
            &["export", &index.to_string(), "--directory", &name],
        );
        assert!(text.contains("ssh-keygen -Y verify"), "{text}");
        let out = folder.path().join(name);
        assert!(ssh_keygen_verifies(&out, user));
        assert!(!ssh_keygen_verifies(&out, "mallory"));
        // The auditor's own list is what counts.
        let public = fs::read_to_string(folder.path().join(format!("{user}.pub"))).unwrap();
        fs::write(out.join("allowed_signers"), format!("{user} {public}")).unwrap();
        assert!(ssh_keygen_verifies(&out, user));
        let genuine = fs::read(out.join("statement")).unwrap();
        for place in (0..genuine.len()).step_by(17) {
            let mut changed = genuine.clone();
            changed[place] ^= 1;
            fs::write(out.join("statement"), changed).unwrap();
            assert!(!ssh_keygen_verifies(&out, user), "{user} {place}");
        }
        fs::write(out.join("statement"), genuine).unwrap();
        assert!(ssh_keygen_verifies(&out, user));
        let proof = fs::read_to_string(out.join("record.tlog-proof")).unwrap();
        let head = format!("c2sp.org/tlog-proof@v1\nindex {index}\n");
        assert!(proof.starts_with(&head), "{proof}");
    }
    let error = fails(
        folder.path(),
        &["export", "0", "--directory", "out-alice"],
        4,
    );
    assert!(error.contains("out-alice/statement"), "{error}");
    let error = fails(folder.path(), &["export", "3", "--directory", "out"], 1);
    assert!(
        error.contains("no record 3: the log has 3 records"),
        "{error}"
    );
}

#[test]
fn records_of_one_user_or_session_are_shown() {
    let (folder, mut log) = world();
    let session = session_id(&statement("bob").encode());
    let end = SessionEnd {
        session,
        user: "bob".parse().unwrap(),
        service: "imap".parse().unwrap(),
        ended: 1_800_000_060,
        reason: Refusal::RevokedKey,
    };
    let signed = log.sign_end(&end).unwrap();
    log.append(&[signed]).unwrap();
    // More records than are read at once come between.
    for _ in 0..300 {
        let others = SessionEnd {
            user: "alice".parse().unwrap(),
            session: session_id(&statement("alice").encode()),
            ..end.clone()
        };
        let signed = log.sign_end(&others).unwrap();
        log.append(&[signed]).unwrap();
    }
    let shown = |options: &[&str]| {
        let text = succeeds(folder.path(), &[&["show"], options].concat());
        let lines = text.lines().skip(1);
        let indexes = lines.map(|line| line.split(' ').next().unwrap().to_owned());
        indexes.collect::<Vec<String>>()
    };
    let session = session.to_string();
    assert_eq!(shown(&["--user", "bob"]), ["1", "3"]);
    assert_eq!(shown(&["--user", "bob", "--count", "1"]), ["3"]);
    let first = ["--user", "bob", "--count", "1", "--from", "0"];
    assert_eq!(shown(&first), ["1"]);
    assert_eq!(shown(&["--user", "bob", "--from", "2"]), ["3"]);
    assert_eq!(shown(&["--session", &session]), ["1", "3"]);
    let neither = ["--session", &session, "--user", "alice"];
    assert_eq!(shown(&neither), [""; 0]);
    assert_eq!(shown(&["--count", "2"]), ["302", "303"]);
    assert_eq!(shown(&["--user", "alice"]).len(), 20);
    let text = succeeds(folder.path(), &["show", "--user", "mallory"]);
    assert_eq!(text, "no records to show; the log has 304\n");
    fails(folder.path(), &["show", "--session", "nonsense"], 2);
}

#[test]
fn the_end_of_a_session_is_shown_exported_and_counted() {
    let (folder, mut log) = world();
    let end = SessionEnd {
        session: session_id(&statement("bob").encode()),
        user: "bob".parse().unwrap(),
        service: "imap".parse().unwrap(),
        ended: 1_800_000_060,
        reason: Refusal::RevokedKey,
    };
    let signed = log.sign_end(&end).unwrap();
    log.append(&[signed]).unwrap();
    let text = succeeds(folder.path(), &["show", "--from", "1"]);
    let session = end.session.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].contains(&session) && lines[1].contains("authenticated for 192.0.2.2:143"));
    let ended = format!(
        "bob    imap     {session}  ended: {} (revoked_key)",
        end.reason
    );
    assert!(
        lines[3].contains("2027-01-15T08:01:00Z") && lines[3].ends_with(&ended),
        "{text}"
    );
    let text = succeeds(folder.path(), &["--json", "show", "--from", "2"]);
    for part in [
        "\"kind\": \"authentication\"",
        "\"kind\": \"session_end\"",
        "\"ended\": 1800000060",
        "\"reason\": \"revoked_key\"",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = succeeds(folder.path(), &["--json", "verify"]);
    for part in ["\"records\": 4", "\"ends\": 1", "\"unmatched_ends\": 0"] {
        assert!(text.contains(part), "{part} in {text}");
    }

    let text = succeeds(folder.path(), &["export", "3", "--directory", "out"]);
    assert!(
        text.contains("-n session-end@usher") && text.contains("-I log@usher"),
        "{text}"
    );
    let out = folder.path().join("out");
    let verifies = |identity| ssh_keygen_verifies_for(SESSION_END_NAMESPACE, &out, identity);
    assert!(verifies("log@usher"));
    assert!(!verifies("bob"));
    assert!(!ssh_keygen_verifies_for(NAMESPACE, &out, "log@usher"));
    // By the log's key as the auditor knows it.
    let public = fs::read_to_string(folder.path().join("log-key.pub")).unwrap();
    fs::write(out.join("allowed_signers"), format!("log@usher {public}")).unwrap();
    assert!(verifies("log@usher"));
    let genuine = fs::read(out.join("statement")).unwrap();
    fs::write(
        out.join("statement"),
        SessionEnd {
            ended: 1,
            ..end.clone()
        }
        .encode(),
    )
    .unwrap();
    assert!(!verifies("log@usher"));
    fs::write(out.join("statement"), genuine).unwrap();
    assert!(verifies("log@usher"));

    // Ends of sessions that were not begun, or were begun by another user, are reported.
    let carol = "carol".parse().unwrap();
    let ends = [
        SessionEnd {
            session: SessionId::from_bytes([1; 16]),
            ..end.clone()
        },
        SessionEnd { user: carol, ..end },
    ];
    let signed = ends.map(|end| log.sign_end(&end).unwrap());
    log.append(&signed).unwrap();
    let text = succeeds(folder.path(), &["verify"]);
    let told = "2 ends are of sessions without an earlier authentication in this log";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("was read beside the log (--key)"), "{text}");
}

#[test]
fn show_tells_who_asked_for_what() {
    let (folder, _log) = world();
    let text = succeeds(folder.path(), &["show"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    for word in [
        "1 ",
        "2027-01-15T08:00:00Z",
        "bob",
        "imap",
        "192.0.2.2:143",
        "SHA256:",
    ] {
        assert!(lines[2].contains(word), "{word} in {text}");
    }
    let text = succeeds(
        folder.path(),
        &["--json", "show", "--from", "1", "--count", "1"],
    );
    for part in [
        "\"size\": 3",
        "\"index\": 1",
        "\"user\": \"bob\"",
        "\"issued\": 1800000000",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("alice") && !text.contains("carol"), "{text}");
    fails(folder.path(), &["show", "--from", "4"], 1);
    fs::remove_dir_all(folder.path().join("log")).unwrap();
    let error = fails(folder.path(), &["show"], 1);
    assert!(error.contains("no log here"), "{error}");
}

#[test]
fn verify_compares_with_the_kept_checkpoint_and_the_kept_keys() {
    let (folder, mut log) = world();
    let text = succeeds(folder.path(), &["verify", "--keep", "kept"]);
    assert!(
        text.starts_with("3 records of mailhost.example.org/usher: 3 authentications, "),
        "{text}"
    );
    assert!(text.contains("no trusted checkpoint was given"), "{text}");
    let kept = fs::read_to_string(folder.path().join("kept")).unwrap();
    assert_eq!(kept, log.checkpoint().note());
    fs::copy(
        folder.path().join("log/verifier-key"),
        folder.path().join("key"),
    )
    .unwrap();
    let mut signers = String::from("# whom we know\n");
    for user in ["alice", "bob", "carol"] {
        let public = fs::read_to_string(folder.path().join(format!("{user}.pub"))).unwrap();
        signers += &format!("{user},other {public}");
    }
    fs::write(folder.path().join("signers"), signers).unwrap();

    // Root makes a key for alice, and has the log's key: the record is sound, but the key is not hers.
    let made = key(folder.path(), "made-by-root", KINDS[0]);
    let signed = Authenticator::sign(&statement("alice"), &made).unwrap();
    append(&mut log, signed);
    let kept = ["--checkpoint", "kept", "--key", "key"];
    let text = succeeds(folder.path(), &[&["--json", "verify"], &kept[..]].concat());
    for part in ["\"records\": 4", "\"kept\": 3", "\"tail\": 0"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let all = [&["--json", "verify", "--signers", "signers"], &kept[..]].concat();
    let error = fails(folder.path(), &all, 1);
    for part in [
        "\"damage\":\"forged\"",
        "\"index\":3",
        "not a known key of alice",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let public = fs::read_to_string(folder.path().join("made-by-root.pub")).unwrap();
    let known = fs::read_to_string(folder.path().join("signers")).unwrap();
    fs::write(
        folder.path().join("signers"),
        format!("{known}alice {public}"),
    )
    .unwrap();
    succeeds(folder.path(), &all);

    let bundle = folder.path().join("log/tile/entries/000");
    let mut bytes = fs::read(&bundle).unwrap();
    bytes[700] ^= 1;
    fs::write(&bundle, &bytes).unwrap();
    let error = fails(folder.path(), &["--json", "verify"], 1);
    for part in ["\"damage\":\"edited\"", "\"index\":1"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    fails(folder.path(), &["verify", "--keep", "other"], 1);
    assert!(!folder.path().join("other").exists());
    fails(folder.path(), &["verify", "--checkpoint", "missing"], 4);
}
