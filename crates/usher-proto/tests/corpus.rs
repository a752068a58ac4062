//! Replays the fuzzers' corpus: every input must have the outcome its file name begins with.
#![forbid(unsafe_code)]

#[path = "../../../fuzz/checks.rs"]
mod checks;
mod common;

use common::{
    SESSION, announcement, authenticator, client_frames, connection, statement, user_key,
};
use signature::Signer;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use usher_proto::ssh_key::private::Ed25519Keypair;
use usher_proto::ssh_key::{PrivateKey, Signature};
use usher_proto::{
    Authenticator, CallReply, CallRequest, ConnectionInfo, FromLender, KeeperReply, KeeperRequest,
    LocalReply, LocalRequest, RecorderReply, RecorderRequest, Refusal, RelayReply, RelayRequest,
    ReservationId, ServerFrame, Statement, ToLender, TokenKey, TokenSlot,
};

type Check = fn(&[u8]) -> &'static str;

const TARGETS: [(&str, Check); 13] = [
    ("agent", checks::agent),
    ("calls", checks::calls),
    ("certificate", checks::certificate),
    ("revoked_keys", checks::revoked_keys),
    ("statement", checks::statement),
    ("authenticator", checks::authenticator),
    ("client_frame", checks::client_frame),
    ("server_frame", checks::server_frame),
    ("keeper_record", checks::keeper_record),
    ("lending", checks::lending),
    ("local", checks::local),
    ("recorder", checks::recorder),
    ("relay", checks::relay),
];

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
}

#[test]
fn every_input_has_the_outcome_in_its_name() {
    for (target, check) in TARGETS {
        let mut outcomes = BTreeSet::new();
        for entry in fs::read_dir(folder(target)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "bin") {
                continue;
            }
            let name = path.file_stem().unwrap().to_str().unwrap();
            let (outcome, _) = name.split_once('-').unwrap();
            let bytes = fs::read(&path).unwrap();
            assert_eq!(check(&bytes), outcome, "{target}/{name}");
            outcomes.insert(outcome.to_owned());
        }
        for outcome in ["accepted", "truncated", "oversized", "malformed"] {
            assert!(
                outcomes.contains(outcome),
                "{target} has no {outcome} input"
            );
        }
    }
}

/// The encoders still give the corpus' bytes: the formats have not moved.
#[test]
fn the_formats_are_those_of_the_corpus() {
    let read = |target: &str, name: &str| fs::read(folder(target).join(name)).unwrap();
    assert_eq!(statement().encode(), read("statement", "accepted-ipv4.bin"));
    for (name, frame) in client_frames() {
        let file = format!("accepted-{name}.bin");
        assert_eq!(frame.encode()[4..], read("client_frame", &file), "{name}");
    }
}

/// Writes the corpus. Not a test of anything: run by hand after a format was added.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_corpus() {
    write("agent", agent());
    write("calls", calls());
    write("certificate", certificates());
    write("revoked_keys", revoked_keys());
    write("statement", statements());
    write("authenticator", signatures());
    write("client_frame", client());
    write("server_frame", server());
    write("keeper_record", keeper());
    write("lending", lending());
    write("local", local());
    write("recorder", recorder());
    write("relay", relay());
}

type Inputs = Vec<(String, Vec<u8>)>;

/// Names each input after the outcome it has now; a person reads the names before committing.
fn write(target: &str, inputs: Inputs) {
    let check = TARGETS.iter().find(|(name, _)| *name == target).unwrap().1;
    fs::create_dir_all(folder(target)).unwrap();
    for (name, bytes) in inputs {
        let path = folder(target).join(format!("{}-{name}.bin", check(&bytes)));
        fs::write(path, bytes).unwrap();
    }
}

/// The value itself and what goes wrong with any format: cut, followed, all ones, a byte changed.
fn variations(name: &str, bytes: Vec<u8>, changed: &[(&str, usize, u8)]) -> Inputs {
    let mut inputs = vec![(format!("{name}-cut"), bytes[..bytes.len() - 1].to_vec())];
    inputs.push((
        format!("{name}-followed"),
        [bytes.as_slice(), &[0]].concat(),
    ));
    for &(what, position, value) in changed {
        let mut other = bytes.clone();
        other[position] = value;
        inputs.push((format!("{name}-{what}"), other));
    }
    inputs.push((name.to_owned(), bytes));
    inputs
}

fn common_to_all(limit: usize) -> Inputs {
    vec![
        ("empty".to_owned(), Vec::new()),
        ("beyond-the-limit".to_owned(), vec![0; limit + 1]),
    ]
}

fn statements() -> Inputs {
    let mut inputs = common_to_all(512);
    // Offsets: 15 magic, 4 version, 4+5 user, 4+4 service, 36 + 36 keys, 20 address, 4 port.
    inputs.extend(variations(
        "ipv4",
        statement().encode(),
        &[
            ("magic", 0, b'U'),
            ("version", 18, 1),
            ("user-length", 22, 0),
            ("user-length-huge", 19, 0xff),
            ("user-not-utf8", 23, 0xff),
            ("user-root-folder", 23, b'/'),
            ("service-length", 31, 33),
            ("key-length", 39, 33),
            ("port-high", 128, 1),
            ("port-zero", 131, 0),
        ],
    ));
    let ipv6 = Statement {
        server: "[2001:db8::2]:143".parse().unwrap(),
        user: "u".repeat(32).parse().unwrap(),
        service: "s".repeat(32).parse().unwrap(),
        issued: u64::MAX,
        expires: 0,
        chain_length: 0,
        ..statement()
    };
    inputs.push(("ipv6-longest-names".to_owned(), ipv6.encode()));
    inputs
}

fn signatures() -> Inputs {
    let mut inputs = common_to_all(4096);
    // Offsets: 6 magic, 4 version, 4 + 4 + 11 + 4 + 32 key, 4 + 19 namespace, 4 reserved, 4 + 6
    // hash, 4 + 4 + 11 + 4 + 64 signature.
    inputs.extend(variations(
        "ed25519",
        authenticator().signature,
        &[
            ("magic", 0, b's'),
            ("version", 9, 2),
            ("kind", 18, b'x'),
            ("inner-key-length", 17, 10),
            ("namespace", 69, b'A'),
            ("reserved-length", 91, 1),
            ("hash", 98, b'6'),
            ("signature", 130, 0),
        ],
    ));
    let mut weak = authenticator().signature;
    let length = weak.len();
    for at in [33, length - 64] {
        weak[at..at + 32].fill(0);
        weak[at] = 1;
    }
    weak[length - 32..].fill(0);
    inputs.push(("small-order-forgery".to_owned(), weak));
    inputs
}

fn client() -> Inputs {
    let mut inputs = common_to_all(8192);
    for (name, frame) in client_frames() {
        inputs.extend(variations(
            name,
            frame.encode()[4..].to_vec(),
            &[("type", 0, 129)],
        ));
        // As a stream: the target reads its input that way too.
        inputs.push((format!("{name}-with-its-length"), frame.encode()));
    }
    let open = client_frames().remove(0).1.encode()[4..].to_vec();
    inputs.extend(variations(
        "open",
        open,
        &[
            ("statement-length", 11, 0xff),
            ("statement-length-huge", 9, 0xff),
        ],
    ));
    let withdraw = client_frames().remove(2).1.encode()[4..].to_vec();
    inputs.extend(variations(
        "withdraw",
        withdraw,
        &[("mixed-families", 25, 0x20), ("server-port-zero", 60, 0)],
    ));
    inputs
}

fn server() -> Inputs {
    let mut inputs = common_to_all(8192);
    let reply = |verdict| {
        ServerFrame::Reply {
            request: 7,
            verdict,
        }
        .encode()[4..]
            .to_vec()
    };
    inputs.extend(variations("granted", reply(Ok(())), &[("type", 0, 1)]));
    inputs.extend(variations(
        "refused",
        reply(Err(Refusal::NotAuthenticated)),
        &[
            ("code-not-given-out", 9, 0xff),
            ("code-never-disclosed", 10, 67),
        ],
    ));
    let ended = ServerFrame::SessionEnded {
        session: SESSION,
        reason: Refusal::DisabledUser,
    };
    inputs.extend(variations(
        "session-ended",
        ended.encode()[4..].to_vec(),
        &[("with-request", 8, 1), ("without-reason", 26, 0)],
    ));
    let pong = ServerFrame::Pong { request: 9 };
    inputs.extend(variations("pong", pong.encode()[4..].to_vec(), &[]));
    let slot = ServerFrame::Slot {
        request: 9,
        slot: TokenSlot::new(0x00ab_cdef).unwrap(),
    };
    inputs.extend(variations(
        "slot",
        slot.encode()[4..].to_vec(),
        &[("beyond-24-bits", 9, 1)],
    ));
    let reauthenticate = ServerFrame::Reauthenticate { session: SESSION };
    inputs.extend(variations(
        "reauthenticate",
        reauthenticate.encode()[4..].to_vec(),
        &[("with-request", 8, 1)],
    ));
    inputs
}

fn keeper() -> Inputs {
    let mut inputs = common_to_all(256);
    let open = KeeperRequest::Open {
        request: 1,
        session: SESSION,
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        host: "laptop".parse().unwrap(),
        key_fingerprint: [3; 32],
        chain_anchor: [1; 16],
        token_anchor: [4; 11],
        chain_salt: [2; 16],
        chain_length: 1024,
        expires: common::NOW,
    };
    inputs.extend(variations(
        "open",
        open.encode().to_vec(),
        &[
            ("version", 0, 1),
            ("type", 1, 77),
            ("user-padding", 58, 1),
            ("user-length", 26, 255),
            ("user-character", 27, b'/'),
            ("padding", 255, 1),
        ],
    ));
    let request = 2;
    let session = SESSION;
    let connection = connection();
    let announcement = announcement();
    for (name, record) in [
        (
            "announce",
            KeeperRequest::Announce {
                request,
                session,
                host: "laptop".parse().unwrap(),
                announcement,
            },
        ),
        (
            "withdraw",
            KeeperRequest::Withdraw {
                request,
                session,
                host: "laptop".parse().unwrap(),
                connection,
            },
        ),
        (
            "close",
            KeeperRequest::Close {
                request,
                session,
                host: "laptop".parse().unwrap(),
            },
        ),
        (
            "tokens",
            KeeperRequest::Tokens {
                request,
                session,
                host: "laptop".parse().unwrap(),
                key: TokenKey::from_bytes([9; 16]),
            },
        ),
        (
            "reauthenticate",
            KeeperRequest::Reauthenticate {
                request,
                session,
                host: "laptop".parse().unwrap(),
                element: announcement.element,
            },
        ),
    ] {
        inputs.extend(variations(
            name,
            record.encode().to_vec(),
            &[("padding", 255, 1)],
        ));
    }
    let host: usher_proto::HostName = "laptop".parse().unwrap();
    let reason = Refusal::SessionEnded;
    for (name, record) in [
        (
            "granted",
            KeeperReply::Verdict {
                request,
                verdict: Ok(()),
            },
        ),
        (
            "refused",
            KeeperReply::Verdict {
                request,
                verdict: Err(Refusal::UnknownUser),
            },
        ),
        (
            "session-ended",
            KeeperReply::SessionEnded {
                session,
                host: host.clone(),
                reason,
            },
        ),
        (
            "slot",
            KeeperReply::Slot {
                request,
                slot: TokenSlot::new(0x00ab_cdef).unwrap(),
            },
        ),
        (
            "reauthenticate-wanted",
            KeeperReply::Reauthenticate { session, host },
        ),
    ] {
        inputs.extend(variations(
            name,
            record.encode().to_vec(),
            &[("padding", 255, 1)],
        ));
    }
    inputs
}

fn local() -> Inputs {
    let mut inputs = common_to_all(256);
    let connect = LocalRequest::Connect {
        host: "mailhost".parse().unwrap(),
        service: "imap".parse().unwrap(),
    };
    inputs.extend(variations(
        "connect",
        connect.encode(),
        &[
            ("version", 0, 2),
            ("type", 1, 77),
            ("on-behalf", 1, 2),
            ("with-ticket", 1, 4),
            ("host-length-zero", 2, 0),
            ("host-length-huge", 2, 255),
            ("host-character", 3, b'/'),
        ],
    ));
    let done = LocalRequest::Done { connected: true };
    inputs.extend(variations(
        "done",
        done.encode(),
        &[("neither", 2, 2), ("failed", 2, 0)],
    ));
    let ready = LocalReply::Ready {
        server: connection().server,
    };
    inputs.extend(variations("ready", ready.encode(), &[("port-zero", 19, 0)]));
    let refused = LocalReply::Refused(Refusal::ClientPolicy);
    inputs.extend(variations(
        "refused",
        refused.encode(),
        &[("code", 2, 0xff)],
    ));
    inputs.extend(variations("lend", LocalRequest::Lend.encode(), &[]));
    inputs.extend(variations("finished", LocalReply::Finished.encode(), &[]));
    let ticket = LocalReply::Ticket {
        server: connection().server,
    };
    inputs.extend(variations(
        "ticket",
        ticket.encode(),
        &[("port-zero", 19, 0)],
    ));
    inputs
}

fn agent() -> Inputs {
    let mut inputs = common_to_all(4096);
    let key = user_key();
    let data = Authenticator::signed_data(&statement().encode()).unwrap();
    let sign = |data: &[u8], key: &PrivateKey| {
        let signature: Signature = key.try_sign(data).unwrap();
        let signature = Vec::try_from(signature).unwrap();
        let mut answer = vec![14, 0, 0, 0, u8::try_from(signature.len()).unwrap()];
        answer.extend(signature);
        answer
    };
    inputs.extend(variations(
        "signature",
        sign(&data, &key),
        &[
            ("type", 0, 12),
            ("length-huge", 1, 0xff),
            ("length-short", 4, 82),
            ("algorithm-length", 8, 10),
            ("algorithm", 19, b'8'),
            ("value", 40, 0x55),
        ],
    ));
    inputs.push(("signature-other-data".into(), sign(b"other data", &key)));
    let other = Ed25519Keypair::from_seed(&[8; 32]).into();
    inputs.push(("signature-other-key".into(), sign(&data, &other)));
    inputs.push(("signature-empty".into(), vec![14, 0, 0, 0, 0]));
    inputs.extend(variations("not", vec![5], &[]));
    inputs
}

fn lending() -> Inputs {
    let mut inputs = common_to_all(4640);
    let sign = ToLender::Sign {
        public_key: user_key().public_key().to_bytes().unwrap(),
        statement: statement().encode(),
    };
    inputs.extend(variations(
        "sign",
        sign.encode(),
        &[("version", 0, 2), ("type", 1, 77), ("key-huge", 2, 0xff)],
    ));
    let refused = ToLender::Refused(Refusal::NoPrivateKey);
    inputs.extend(variations(
        "refused",
        refused.encode(),
        &[("code", 2, 0xff)],
    ));
    inputs.extend(variations("lent", ToLender::Lent.encode(), &[]));
    inputs.extend(variations("replaced", ToLender::Replaced.encode(), &[]));
    let signature = FromLender::Signature(vec![7; 83]);
    inputs.extend(variations("signature", signature.encode(), &[]));
    inputs.extend(variations(
        "not-signed",
        FromLender::NotSigned.encode(),
        &[],
    ));
    inputs
}

fn calls() -> Inputs {
    let mut inputs = common_to_all(640);
    let reservation = ReservationId::from_bytes([9; 16]);
    let attach = CallRequest::Attach { port: 143 };
    let changed = [("version", 0, 2), ("type", 1, 77), ("port-zero", 3, 0)];
    inputs.extend(variations("attach", attach.encode(), &changed));
    for (name, request) in [
        ("pre-accept", CallRequest::PreAccept),
        ("set-net-user", CallRequest::SetNetUser { reservation }),
        ("settled", CallRequest::Settled),
        ("accepted", CallRequest::Accepted),
        (
            "info",
            CallRequest::Info {
                connection: connection(),
            },
        ),
    ] {
        inputs.extend(variations(name, request.encode(), &[]));
    }
    let identity = CallReply::Identity {
        uid: 1000,
        gid: 1000,
        groups: vec![4, 1000],
    };
    inputs.extend(variations(
        "identity",
        identity.encode(),
        &[("groups-huge", 10, 0xff), ("groups-descending", 14, 0xff)],
    ));
    let root = CallReply::Identity {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    };
    inputs.push(("identity-root".to_owned(), root.encode()));
    let attached = CallReply::Attached {
        service: "imap".parse().unwrap(),
        process_per_user: true,
    };
    inputs.extend(variations(
        "attached",
        attached.encode(),
        &[("style", 2, 2)],
    ));
    let reserved = CallReply::Reserved {
        reservation,
        uid: 1000,
    };
    inputs.extend(variations("reserved", reserved.encode(), &[]));
    inputs.extend(variations("queue", CallReply::Queue.encode(), &[]));
    let connection = CallReply::Connection(ConnectionInfo {
        uid: 1000,
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        host: "laptop".parse().unwrap(),
        key_fingerprint: [3; 32],
        opened: common::NOW,
        expires: common::NOW + 3600,
    });
    inputs.extend(variations(
        "connection",
        connection.encode(),
        &[("user-padding", 38, 1)],
    ));
    let refused = CallReply::Refused(Refusal::NotThisAccount);
    inputs.extend(variations("refused", refused.encode(), &[]));
    inputs
}

fn relay() -> Inputs {
    let mut inputs = common_to_all(9000);
    let forward = RelayRequest::Forward {
        channel: "mailhost".parse().unwrap(),
        server_host_key: common::server_key(),
        control: vec![connection().server, "[2001:db8::2]:3440".parse().unwrap()],
        frame: client_frames().remove(0).1.encode(),
    };
    // Offsets: version, type, 1 + 8 channel, 32 key, then the count.
    inputs.extend(variations(
        "forward",
        forward.encode(),
        &[
            ("version", 0, 2),
            ("type", 1, 77),
            ("no-address", 43, 0),
            ("nine-addresses", 43, 9),
            ("channel-character", 3, b'/'),
        ],
    ));
    let channel = || "mailhost".parse().unwrap();
    let frame = ServerFrame::Pong { request: 1 }.encode()[4..].to_vec();
    let frame = RelayReply::Frame {
        channel: channel(),
        frame,
    };
    inputs.extend(variations(
        "frame",
        frame.encode(),
        &[("length-huge", 11, 0xff)],
    ));
    let lost = RelayReply::ChannelLost {
        channel: channel(),
        refusal: Refusal::VerifierUnavailable,
    };
    inputs.extend(variations(
        "channel-lost",
        lost.encode(),
        &[("code", 11, 0xff)],
    ));
    inputs
}

fn recorder() -> Inputs {
    let mut inputs = common_to_all(16_398);
    let keep = RecorderRequest {
        request: 7,
        record: b"a record".to_vec(),
    };
    // Offsets: version, type, 8 request, then the record's length.
    inputs.extend(variations(
        "keep",
        keep.encode(),
        &[
            ("version", 0, 2),
            ("type", 1, 77),
            ("length-huge", 10, 0xff),
        ],
    ));
    for (name, verdict) in [
        ("kept", Ok(())),
        ("not-kept", Err(Refusal::RecorderUnavailable)),
    ] {
        let reply = RecorderReply {
            request: 7,
            verdict,
        };
        inputs.extend(variations(name, reply.encode(), &[("code", 10, 0xff)]));
    }
    inputs
}

/// Runs ssh-keygen in a folder.
fn ssh_keygen(folder: &std::path::Path, arguments: &[&str]) {
    let mut command = std::process::Command::new("ssh-keygen");
    let made = command.current_dir(folder).args(arguments).status();
    assert!(made.unwrap().success(), "{arguments:?}");
}

/// A folder with keys `key` and `ca`, and `key-cert.pub`.
fn certified() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for key in ["key", "ca"] {
        let path = folder.path();
        ssh_keygen(path, &["-q", "-t", "ed25519", "-N", "", "-f", key]);
    }
    let sign = [
        "-q",
        "-s",
        "ca",
        "-I",
        "id",
        "-n",
        "alice,mail",
        "-z",
        "7",
        "key.pub",
    ];
    ssh_keygen(folder.path(), &sign);
    folder
}

fn certificates() -> Inputs {
    use ssh_encoding::base64::{Base64, Encoding};
    let folder = certified();
    let line = fs::read_to_string(folder.path().join("key-cert.pub")).unwrap();
    let bytes = Base64::decode_vec(line.split(' ').nth(1).unwrap()).unwrap();
    let last = bytes.len() - 1;
    // The nonce is from 40 on, the key from 76, the serial number from 108, the type from 116.
    let changed = [
        ("kind", 8, b'x'),
        ("nonce", 40, bytes[40] ^ 1),
        ("key-length", 75, 33),
        ("serial", 115, 8),
        ("host", 119, 2),
        ("key-id-huge", 120, 1),
        ("signature", last, bytes[last] ^ 1),
    ];
    let mut inputs = variations("ed25519", bytes, &changed);
    inputs.extend(common_to_all(usher_proto::MAX_CERTIFICATE_SIZE));
    inputs
}

fn revoked_keys() -> Inputs {
    let folder = certified();
    let path = folder.path();
    let key = fs::read(path.join("key.pub")).unwrap();
    let serials: String = (1..60)
        .filter(|serial| serial % 3 != 0)
        .map(|serial| format!("serial: {serial}\n"))
        .collect();
    let text = String::from_utf8(key.clone()).unwrap();
    fs::write(
        path.join("list"),
        format!("{serials}serial: 1000-2000\nid: id\n{text}sha1: {text}sha256: {text}"),
    )
    .unwrap();
    ssh_keygen(path, &["-q", "-k", "-f", "krl", "-s", "ca.pub", "list"]);
    let krl = fs::read(path.join("krl")).unwrap();
    let changed = [
        ("version", 11, 2),
        ("section", 44, 6),
        ("signed", 44, 4),
        ("length", 48, 0),
        ("length-huge", 45, 1),
    ];
    let mut inputs = variations("krl", krl, &changed);
    inputs.push(("lines".into(), [b"# lost\n", key.as_slice()].concat()));
    inputs.push((
        "lines-nonsense".into(),
        [key.as_slice(), b"nonsense\n"].concat(),
    ));
    inputs.push(("empty".into(), Vec::new()));
    inputs
}
