//! The formats of docs/PROTOCOL.md, section "The log", and what is refused in their place.
#![forbid(unsafe_code)]

mod common;

use common::{
    ORIGIN, authentication, end, end_record, key_change, log, log_key, next_key, record, records,
};
use proptest::prelude::*;
use std::fs;
use usher_base::DecodeError;
use usher_log::{CheckpointError, Record, RecordError, Says, SignedEnd, VerifyingKey};
use usher_proto::{KeyChange, MAX_LOG_RECORD, Refusal};

fn string(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

#[test]
fn a_record_is_laid_out_as_the_document_says() {
    let record = authentication(1);
    let expected = [
        vec![1],
        string(&record.authenticator.statement),
        string(&record.authenticator.signature),
        string(&record.public_key),
    ];
    assert_eq!(record.public_key[..15], *b"\0\0\0\x0bssh-ed25519");
    let record = Record::Authentication(record);
    assert_eq!(record.encode(), expected.concat());
    assert_eq!(Record::decode(&record.encode()), Ok(record));
}

#[test]
fn the_record_of_an_end_is_laid_out_as_the_document_says() {
    let record = end_record(1);
    let end = end(1);
    let expected = [
        b"usher-session-end\0\0\0\x01".to_vec(),
        string(end.session.as_bytes()),
        string(b"alice"),
        string(b"imap"),
        1_800_000_001_u64.to_be_bytes().to_vec(),
        string(b"disabled_user"),
    ];
    assert_eq!(record.end, expected.concat());
    let expected = [vec![2], string(&record.end), string(&record.signature)];
    let signed = SignedEnd {
        end,
        key: log_key().verifying_key().public_key(),
    };
    assert_eq!(record.verify().as_ref(), Ok(&signed));
    let record = Record::End(record);
    assert_eq!(record.encode(), expected.concat());
    assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(&record));
    assert_eq!(record.verify(), Ok(Says::End(signed)));
}

#[test]
fn a_change_of_key_is_laid_out_as_the_document_says() {
    let [former, next] = [log_key(), next_key()].map(|key| key.verifying_key().public_key());
    let record = key_change(7, [0; 32]);
    let change = [
        b"usher-log-key-change\0\0\0\x01".to_vec(),
        string(former.as_bytes()),
        string(next.as_bytes()),
        7_u64.to_be_bytes().to_vec(),
        vec![0; 32],
        1_800_000_000_u64.to_be_bytes().to_vec(),
    ];
    assert_eq!(record.change, change.concat());
    let expected = [
        vec![3],
        string(&record.change),
        string(&record.former_signature),
        string(&record.next_signature),
    ];
    let change = KeyChange {
        former,
        next,
        index: 7,
        root: [0; 32],
        changed: 1_800_000_000,
    };
    assert_eq!(record.verify().as_ref(), Ok(&change));
    let record = Record::KeyChange(record);
    assert_eq!(record.encode(), expected.concat());
    assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(&record));
    assert_eq!(record.verify(), Ok(Says::KeyChange(change)));
}

#[test]
fn a_change_of_key_needs_both_keys() {
    let genuine = key_change(7, [0; 32]);
    let bad = Err(RecordError::LogSignature(Refusal::BadSignature));
    // Changes that only one key has signed, each key in the other's stead, or both for another place.
    let mut other = genuine.clone();
    other.next_signature = genuine.former_signature.clone();
    assert_eq!(other.verify(), Err(RecordError::UnsignedChange));
    let mut other = genuine.clone();
    other.former_signature = genuine.next_signature.clone();
    assert_eq!(other.verify(), Err(RecordError::UnsignedChange));
    std::mem::swap(&mut other.former_signature, &mut other.next_signature);
    assert_eq!(other.verify(), Err(RecordError::UnsignedChange));
    let mut other = genuine.clone();
    other.change = key_change(8, [0; 32]).change;
    assert_eq!(other.verify(), bad);
    let mut other = genuine;
    other.former_signature = end_record(7).signature;
    assert_eq!(other.verify(), bad);
}

#[test]
fn only_this_logs_signature_makes_an_end() {
    let log = log_key().verifying_key().public_key();
    let mut other = end_record(1);
    other.signature = end_record(2).signature;
    assert_eq!(
        other.verify(),
        Err(RecordError::LogSignature(Refusal::BadSignature))
    );
    let of_user = usher_log::SigningKey::new(ORIGIN, &common::user_key()).unwrap();
    let by_user = of_user.sign_end(&end(1)).unwrap().verify().unwrap();
    assert_ne!(by_user.key, log);
    // A signature of the log's key for another purpose is not an end, and an end opens no session.
    let mut other = end_record(1);
    other.signature = authentication(1).authenticator.signature;
    assert_eq!(
        other.verify(),
        Err(RecordError::LogSignature(Refusal::BadSignature))
    );
    let mut other = authentication(1);
    other.authenticator.statement = end_record(1).end;
    other.authenticator.signature = end_record(1).signature;
    assert_eq!(
        other.verify(),
        Err(RecordError::Signature(Refusal::BadSignature))
    );
}

#[test]
fn what_is_no_record_is_refused() {
    let bytes = record(1).encode();
    for length in 0..bytes.len() {
        assert_eq!(
            Record::decode(&bytes[..length]),
            Err(DecodeError::Truncated),
            "{length}"
        );
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(Record::decode(&longer), Err(DecodeError::TrailingBytes));
    for kind in [0, 4, 255] {
        let kind = [&[kind], &bytes[1..]].concat();
        assert_eq!(Record::decode(&kind), Err(DecodeError::UnknownType));
    }
    // An end has no key.
    let end = [&[2], &bytes[1..]].concat();
    assert_eq!(Record::decode(&end), Err(DecodeError::TrailingBytes));
    let long = [vec![1], string(&[0; 513]), string(&[]), string(&[])].concat();
    assert_eq!(Record::decode(&long), Err(DecodeError::Oversized));
    assert_eq!(
        Record::decode(&[1; MAX_LOG_RECORD + 1]),
        Err(DecodeError::Oversized)
    );
}

#[test]
fn a_record_is_one_that_its_key_signed() {
    authentication(1).verify().unwrap();
    let mut other = authentication(1);
    other.authenticator.signature = authentication(2).authenticator.signature;
    assert_eq!(
        other.verify(),
        Err(RecordError::Signature(Refusal::BadSignature))
    );
    let mut other = authentication(1);
    other.public_key[30] ^= 1;
    assert_eq!(other.verify(), Err(RecordError::OtherKey));
}

#[test]
fn a_checkpoint_is_laid_out_as_the_document_says() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &records(0..2));
    let note = log.checkpoint().note();
    assert_eq!(
        fs::read_to_string(folder.path().join("checkpoint")).unwrap(),
        note
    );
    let lines: Vec<&str> = note.split('\n').collect();
    let root = log.checkpoint().checkpoint().root_text();
    assert_eq!(lines[..4], [ORIGIN, "2", root.as_str(), ""]);
    let words: Vec<&str> = lines[4].split(' ').collect();
    assert_eq!(words[..2], ["\u{2014}", ORIGIN]);
    let signature = <base64ct::Base64 as base64ct::Encoding>::decode_vec(words[2]).unwrap();
    assert_eq!(signature.len(), 4 + 64);
    let key = log_key().verifying_key().to_string();
    let id: String = signature[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(key.starts_with(&format!("{ORIGIN}+{id}+")), "{key}");
    assert_eq!(lines[5..], [""]);
}

#[test]
fn keys_of_other_tools_are_read() {
    // The example from Go's sumdb/note.
    let key = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    assert_eq!(VerifyingKey::parse(key).unwrap().origin(), "PeterNeumann");
}

#[test]
fn checkpoints_have_one_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &records(0..2));
    let key = log_key().verifying_key().clone();
    let note = log.checkpoint().note();
    assert_eq!(&key.open(note).unwrap(), log.checkpoint());
    let witness = "\u{2014} witness.example.org AAAAAAAAAAAAAAAA\n";
    key.open(&format!("{note}{witness}")).unwrap();
    let (text, signature) = note.split_once("\n\n").unwrap();
    for malformed in [
        String::new(),
        text.to_owned(),
        format!("{text}\nextension\n\n{signature}"),
        format!("{}\n\n{signature}", text.replace("\n2\n", "\n02\n")),
        format!("{}\n\n{signature}", text.replace("\n2\n", "\n+2\n")),
        note.trim_end().to_owned(),
        format!("{note}\n"),
        note.replace('\n', "\r\n"),
    ] {
        assert_eq!(
            key.open(&malformed),
            Err(CheckpointError::Malformed),
            "{malformed}"
        );
    }
    let unsigned = CheckpointError::Signature(ORIGIN.into());
    let other = format!("{text}\n\n{witness}");
    assert_eq!(key.open(&other), Err(unsigned.clone()));
    assert_eq!(key.open(&note.replace("\n2\n", "\n3\n")), Err(unsigned));
    assert!(matches!(
        key.open(&note.replacen("mailhost", "otherhost", 1)),
        Err(CheckpointError::OtherLog { .. })
    ));
}

proptest! {
    #[test]
    fn records_of_any_bytes_have_one_spelling(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(record) = Record::decode(&bytes) {
            prop_assert_eq!(record.encode(), bytes);
        }
    }

    #[test]
    fn a_changed_record_is_no_record_or_another_one(
        number in 1..3_u64,
        place in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let mut bytes = record(number).encode();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        if let Ok(record) = Record::decode(&bytes) {
            prop_assert_eq!(record.encode(), &bytes[..]);
            prop_assert!(record.verify().is_err());
        }
    }

    #[test]
    fn no_text_is_a_checkpoint_by_chance(text in "\\PC*(\n\\PC*){0,6}\n?") {
        prop_assert!(log_key().verifying_key().open(&text).is_err());
        prop_assert!(VerifyingKey::parse(&text).is_err());
    }
}
