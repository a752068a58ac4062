//! Signed statements, and the keys that verify them.

use crate::common::ssh_keygen::{certify, does, make_key};
use crate::common::{authenticator, statement, user_key};
use crate::inputs::{Inputs, common_to_all, variations};
use signature::Signer;
use ssh_encoding::base64::{Base64, Encoding};
use std::fs;
use usher_proto::ssh_key::private::Ed25519Keypair;
use usher_proto::ssh_key::{PrivateKey, Signature};
use usher_proto::{Authenticator, Certificate, Statement};

/// A folder with keys `key` and `ca`, and `key-cert.pub`.
fn certified() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    make_key(folder.path(), "key", "ed25519");
    certify(folder.path(), "ed25519", "alice,mail");
    folder
}

pub fn statements() -> Inputs {
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

pub fn signatures() -> Inputs {
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
    // The certificate is from 14 on: its kind, from 50 on the nonce, from 86 on the key, from 126
    // on the type.
    let folder = certified();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let certificate = Certificate::parse(&read("key-cert.pub")).unwrap();
    let key = PrivateKey::from_openssh(read("key")).unwrap();
    let signed = Authenticator::sign(&statement(), &key).unwrap();
    let signed = signed.with_certificate(&certificate).unwrap().signature;
    let after = 14 + certificate.as_bytes().len();
    inputs.extend(variations(
        "certified",
        signed.clone(),
        &[
            ("kind", 18, b'x'),
            ("nonce", 54, signed[54] ^ 1),
            ("key", 95, signed[95] ^ 1),
            ("host", 129, 2),
            ("authority-signature", after - 1, signed[after - 1] ^ 1),
            ("namespace", after + 4, b'A'),
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

pub fn certificates() -> Inputs {
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

pub fn revoked_keys() -> Inputs {
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
    let make = ["-q", "-k", "-f", "krl", "-s", "ca.pub", "list"];
    assert!(does(path, &make), "{make:?}");
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

pub fn agent() -> Inputs {
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
