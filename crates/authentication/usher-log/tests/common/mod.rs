//! Logs that the tests share.
#![allow(dead_code, reason = "each test program uses its own part")]

use signature::Signer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{fs, io};
use usher_log::{
    AuthenticationRecord, EndRecord, Kept, KeyChangeRecord, Log, Record, SignedRecord, SigningKey,
    SigningKeys,
};
use usher_proto::ssh_key::private::Ed25519Keypair;
use usher_proto::ssh_key::{PrivateKey, Signature};
use usher_proto::{
    Authenticator, Chain, HostPublicKey, KeyChange, Refusal, SessionEnd, SessionId, Statement,
};

pub const ORIGIN: &str = "mailhost.example.org/usher";

pub fn log_key() -> SigningKey {
    SigningKey::new(ORIGIN, &Ed25519Keypair::from_seed(&[9; 32]).into()).unwrap()
}

/// The key that takes the place of [`log_key`].
pub fn next_key() -> SigningKey {
    SigningKey::new(ORIGIN, &Ed25519Keypair::from_seed(&[10; 32]).into()).unwrap()
}

/// Two keys, as of a log whose key is being changed.
pub fn keys(present: SigningKey, next: SigningKey) -> SigningKeys {
    let mut keys = SigningKeys::from(present);
    keys.add_next(next).unwrap();
    keys
}

/// [`log_key`] and [`next_key`].
pub fn both_keys() -> SigningKeys {
    keys(log_key(), next_key())
}

/// The change of [`log_key`] to [`next_key`], as record `index` of a log with this root before it.
pub fn key_change(index: u64, root: [u8; 32]) -> KeyChangeRecord {
    let change = KeyChange {
        former: log_key().verifying_key().public_key(),
        next: next_key().verifying_key().public_key(),
        index,
        root,
        changed: 1_800_000_000,
    };
    let signed = KeyChangeRecord::signed_data(&change).unwrap();
    let sign = |seed| {
        let key: PrivateKey = Ed25519Keypair::from_seed(&[seed; 32]).into();
        let signature: Signature = Signer::sign(&key, &signed);
        signature.as_bytes().try_into().unwrap()
    };
    KeyChangeRecord::new(&change, &sign(9), &sign(10))
}

pub fn user_key() -> PrivateKey {
    Ed25519Keypair::from_seed(&[7; 32]).into()
}

pub fn statement(number: u64) -> Statement {
    let chain = Chain::generate(8, [1; 16], [2; 16]);
    let mut nonce = [3; 16];
    nonce[..8].copy_from_slice(&number.to_be_bytes());
    Statement {
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        client_host_key: HostPublicKey::from_bytes([0xc1; 32]),
        server_host_key: HostPublicKey::from_bytes([0x5e; 32]),
        server: "192.0.2.2:143".parse().unwrap(),
        issued: 1_800_000_000 + number,
        expires: 1_800_003_600 + number,
        nonce,
        chain_anchor: chain.anchor(),
        token_anchor: [0; 11],
        chain_length: chain.length(),
        chain_salt: chain.salt(),
    }
}

/// The end of session `number`.
pub fn end(number: u64) -> SessionEnd {
    let mut session = [4; 16];
    session[..8].copy_from_slice(&number.to_be_bytes());
    SessionEnd {
        session: SessionId::from_bytes(session),
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        ended: 1_800_000_000 + number,
        reason: Refusal::DisabledUser,
    }
}

/// The record of the end of session `number`, signed by [`log_key`].
pub fn end_record(number: u64) -> EndRecord {
    log_key().sign_end(&end(number)).unwrap()
}

/// The record of an authentication: the same bytes every time.
pub fn authentication(number: u64) -> AuthenticationRecord {
    AuthenticationRecord {
        authenticator: Authenticator::sign(&statement(number), &user_key()).unwrap(),
        public_key: user_key().public_key().to_bytes().unwrap(),
    }
}

/// Record `number`: the same bytes every time. Every third one is the end of a session. Cached,
/// because signing takes time.
pub fn record(number: u64) -> Record {
    static MADE: Mutex<BTreeMap<u64, Record>> = Mutex::new(BTreeMap::new());
    if let Some(record) = MADE.lock().unwrap().get(&number) {
        return record.clone();
    }
    let record = fresh(number);
    MADE.lock().unwrap().insert(number, record.clone());
    record
}

/// As [`record`], without the cache.
pub fn fresh(number: u64) -> Record {
    match number % 3 {
        2 => Record::End(end_record(number)),
        _ => Record::Authentication(authentication(number)),
    }
}

pub fn records(numbers: std::ops::Range<u64>) -> Vec<Record> {
    numbers.map(record).collect()
}

/// These records in the form that a log accepts.
pub fn signed(records: &[Record]) -> Vec<SignedRecord> {
    let signed = records.iter().map(|record| match record {
        Record::Authentication(_) => SignedRecord::new(&record.encode()).unwrap().0,
        Record::End(record) => {
            SignedRecord::of_end(&SessionEnd::decode(&record.end).unwrap(), &log_key()).unwrap()
        }
        Record::KeyChange(_) => panic!("only a log itself changes its key"),
    });
    signed.collect()
}

/// A log of these records, appended a few at a time.
pub fn log(directory: &Path, records: &[Record]) -> Log {
    let mut log = Log::open(directory, log_key()).unwrap();
    for batch in records.chunks(3) {
        log.append(&signed(batch)).unwrap();
    }
    log
}

/// All files below a directory but the lock, in the order of their names.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().unwrap() != "lock" {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Copies a log.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for path in files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap())?;
        fs::copy(path, target)?;
    }
    Ok(())
}

/// A checkpoint that was kept, and no key.
pub fn checkpoint(note: &str) -> Kept<'_> {
    Kept {
        checkpoint: Some(note),
        key: None,
    }
}

/// Writes a log of these bytes like a careful forger with the key of this seed.
pub fn rewrite(directory: &Path, seed: u8, records: &[Record]) {
    use usher_log::merkle::{Frontier, leaf_hash};
    let mut bytes = Vec::new();
    let mut hashes = Vec::new();
    let mut tree = Frontier::default();
    for record in records {
        let entry = record.encode();
        bytes.extend_from_slice(&u16::try_from(entry.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(&entry);
        hashes.extend_from_slice(&leaf_hash(&entry));
        tree.push(leaf_hash(&entry), |_, _, _| {});
    }
    fs::write(directory.join("tile/entries/000"), bytes).unwrap();
    fs::write(directory.join("tile/0/000"), hashes).unwrap();
    let key = usher_proto::ssh_key::PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]));
    let root = <base64ct::Base64 as base64ct::Encoding>::encode_string(&tree.root());
    let text = format!("{ORIGIN}\n{}\n{root}\n", records.len());
    let signature: usher_proto::ssh_key::Signature = signature::Signer::sign(&key, text.as_bytes());
    let public = [
        &[1],
        key.public_key().key_data().ed25519().unwrap().0.as_slice(),
    ]
    .concat();
    let id = signed_note::key_id(ORIGIN, &public);
    let line = signed_note::Signature::new(ORIGIN.into(), id, signature.as_bytes().to_vec());
    let note = signed_note::Note::new(text.as_bytes(), &[line.unwrap()]).unwrap();
    fs::write(directory.join("checkpoint"), note.to_bytes()).unwrap();
}
