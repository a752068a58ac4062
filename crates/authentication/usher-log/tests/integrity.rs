//! Tampering with a log's files is detected and named.
#![forbid(unsafe_code)]

mod common;

use common::{
    ORIGIN, authentication, checkpoint, copy, files, log, log_key, record, records, rewrite, signed,
};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use usher_log::{
    Damage, Kept, Log, LogError, Reader, Record, RecordError, SignedRecord, SigningKey,
    VerifyingKey,
};
use usher_proto::Refusal;
use usher_proto::ssh_key::private::Ed25519Keypair;

const RECORDS: u64 = 5;

/// A log of a few records, and its checkpoint in other hands.
fn world() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &records(0..RECORDS));
    let kept = log.checkpoint().note().to_owned();
    (folder, kept)
}

fn verify(directory: &Path, kept: &str) -> Result<(), Damage> {
    let reader = match Reader::open(directory) {
        Ok(reader) => reader,
        Err(LogError::Damaged(damage)) => return Err(damage),
        Err(error) => panic!("{error}"),
    };
    match reader.verify(checkpoint(kept)) {
        Ok(report) => {
            assert_eq!(report.tail, 0);
            Ok(())
        }
        Err(LogError::Damaged(damage)) => Err(damage),
        Err(error) => panic!("{error}"),
    }
}

fn bundle(directory: &Path) -> std::path::PathBuf {
    directory.join("tile/entries/000")
}

/// The beginning of each record of the first bundle, and the end of the last.
fn borders(directory: &Path) -> Vec<usize> {
    let bytes = fs::read(bundle(directory)).unwrap();
    let mut borders = vec![0];
    while let Some(at) = borders.last().copied().filter(|at| *at < bytes.len()) {
        borders.push(at + 2 + usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]])));
    }
    borders
}

#[test]
fn an_unchanged_log_verifies_against_all_its_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::open(folder.path(), log_key()).unwrap();
    let mut kept = vec![log.checkpoint().note().to_owned()];
    for batch in records(0..12).chunks(5) {
        let appended = log.append(&signed(batch)).unwrap();
        assert_eq!(log.checkpoint(), &appended.checkpoint);
        kept.push(appended.checkpoint.note().to_owned());
    }
    for kept in &kept {
        verify(folder.path(), kept).unwrap();
    }
    let reader = Reader::open(folder.path()).unwrap();
    assert_eq!(reader.records(0..12).unwrap(), records(0..12));
    assert_eq!(reader.records(5..7).unwrap(), records(5..7));
    assert!(matches!(
        reader.records(11..13),
        Err(LogError::NoRecord {
            index: 12,
            size: 12
        })
    ));
}

#[test]
fn every_edit_of_one_byte_is_found() {
    let (folder, kept) = world();
    verify(folder.path(), &kept).unwrap();
    for path in files(folder.path()) {
        let genuine = fs::read(&path).unwrap();
        for place in 0..genuine.len() {
            let mut edited = genuine.clone();
            edited[place] ^= 1 << (place % 8);
            fs::write(&path, &edited).unwrap();
            verify(folder.path(), &kept).expect_err(&format!("{path:?} {place}"));
        }
        fs::write(&path, &genuine).unwrap();
    }
    verify(folder.path(), &kept).unwrap();
}

#[test]
fn an_edited_record_is_named() {
    let (folder, kept) = world();
    let borders = borders(folder.path());
    let genuine = fs::read(bundle(folder.path())).unwrap();
    for (index, begin) in borders.windows(2).enumerate() {
        for place in [begin[0] + 2, begin[0] + 40, begin[1] - 1] {
            let mut edited = genuine.clone();
            edited[place] ^= 1;
            fs::write(bundle(folder.path()), &edited).unwrap();
            let damage = verify(folder.path(), &kept).unwrap_err();
            assert_eq!(
                (damage.kind(), damage.index()),
                ("edited", Some(index as u64))
            );
        }
    }
}

#[test]
fn every_truncation_is_found_and_the_first_missing_record_named() {
    let (folder, kept) = world();
    let borders = borders(folder.path());
    let genuine = fs::read(bundle(folder.path())).unwrap();
    for length in 0..genuine.len() {
        fs::write(bundle(folder.path()), &genuine[..length]).unwrap();
        let damage = verify(folder.path(), &kept).unwrap_err();
        let missing = borders.iter().filter(|border| **border <= length).count() - 1;
        assert_eq!(
            (damage.kind(), damage.index()),
            ("truncated", Some(missing as u64)),
            "{length}"
        );
    }
    fs::write(bundle(folder.path()), &genuine).unwrap();
    for path in files(folder.path()) {
        let genuine = fs::read(&path).unwrap();
        for length in 0..genuine.len() {
            fs::write(&path, &genuine[..length]).unwrap();
            verify(folder.path(), &kept).expect_err(&format!("{path:?} {length}"));
        }
        fs::write(&path, &genuine).unwrap();
    }
}

#[test]
fn every_exchange_of_two_records_is_found_at_its_first_place() {
    let (folder, kept) = world();
    let borders = borders(folder.path());
    let genuine = fs::read(bundle(folder.path())).unwrap();
    let entries: Vec<&[u8]> = borders
        .windows(2)
        .map(|at| &genuine[at[0]..at[1]])
        .collect();
    for first in 0..entries.len() {
        for second in first + 1..entries.len() {
            let mut exchanged = entries.clone();
            exchanged.swap(first, second);
            fs::write(bundle(folder.path()), exchanged.concat()).unwrap();
            let damage = verify(folder.path(), &kept).unwrap_err();
            assert_eq!(
                (damage.kind(), damage.index()),
                ("reordered", Some(first as u64))
            );
            // The hashes exchanged as well: the checkpoint still has another root.
            let tile = folder.path().join("tile/0/000");
            let hashes = fs::read(&tile).unwrap();
            let mut leaves: Vec<&[u8]> = hashes.chunks(32).collect();
            leaves.swap(first, second);
            fs::write(&tile, leaves.concat()).unwrap();
            assert_eq!(
                verify(folder.path(), &kept).unwrap_err().kind(),
                "rewritten"
            );
            fs::write(&tile, &hashes).unwrap();
        }
    }
}

#[test]
fn a_log_set_back_with_an_old_checkpoint_is_found() {
    let (folder, kept) = world();
    let earlier = tempfile::tempdir().unwrap();
    log(earlier.path(), &records(0..RECORDS - 2));
    let damage = verify(earlier.path(), &kept).unwrap_err();
    assert_eq!(
        (damage.kind(), damage.index()),
        ("truncated", Some(RECORDS - 2))
    );
    // A log that continues the kept checkpoint is accepted.
    let kept = Reader::open(earlier.path()).unwrap().checkpoint().unwrap();
    verify(folder.path(), kept.note()).unwrap();
}

#[test]
fn an_unsigned_record_is_found_in_a_log_that_vouches_for_it() {
    // Root has the log's key, and need not use the library, which refuses this.
    let mut forged = authentication(3);
    forged.authenticator.statement = common::statement(99).encode();
    let folder = tempfile::tempdir().unwrap();
    drop(log(folder.path(), &records(0..3)));
    let forged = Record::Authentication(forged);
    assert_eq!(
        SignedRecord::new(&forged.encode()).err(),
        Some(RecordError::Signature(Refusal::BadSignature))
    );
    let other_log = SigningKey::new(ORIGIN, &common::user_key()).unwrap();
    let end_of_another = other_log.sign_end(&common::end(3)).unwrap();
    for forged in [forged, Record::End(end_of_another)] {
        rewrite(folder.path(), 9, &[records(0..3), vec![forged]].concat());
        let reader = Reader::open(folder.path()).unwrap();
        let Err(LogError::Damaged(damage)) = reader.verify(Kept::default()) else {
            panic!("not found");
        };
        assert_eq!((damage.kind(), damage.index()), ("forged", Some(3)));
    }
}

#[test]
fn a_log_of_another_key_does_not_pass_for_this_one() {
    let (folder, kept) = world();
    let other = tempfile::tempdir().unwrap();
    let key: usher_proto::ssh_key::PrivateKey = Ed25519Keypair::from_seed(&[8; 32]).into();
    let mut log = Log::open(other.path(), SigningKey::new(ORIGIN, &key).unwrap()).unwrap();
    log.append(&signed(&records(0..RECORDS))).unwrap();
    assert_eq!(
        verify(other.path(), &kept).unwrap_err().kind(),
        "kept_checkpoint"
    );
    let known = Reader::open(folder.path())
        .unwrap()
        .verifying_key()
        .unwrap();
    let reader = Reader::open(other.path()).unwrap();
    let kept = Kept {
        key: Some(&known),
        ..Kept::default()
    };
    assert!(matches!(
        reader.verify(kept),
        Err(LogError::Damaged(Damage::OtherKey { .. }))
    ));
    drop(log);
    assert!(matches!(
        Log::open(other.path(), log_key()),
        Err(LogError::OtherKey { .. })
    ));
}

#[test]
fn proofs_can_be_checked_far_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let all = records(0..300);
    let log = log(folder.path(), &all);
    let reader = Reader::open(folder.path()).unwrap();
    let now = log.checkpoint().checkpoint();
    for index in [0, 1, 255, 256, 298, 299] {
        let proof = reader.prove_inclusion(index, now).unwrap();
        let leaf = usher_log::merkle::leaf_hash(&all[index as usize].encode());
        assert!(usher_log::merkle::verify_inclusion(
            &leaf, index, 300, &now.root, &proof
        ));
        let text = reader.tlog_proof(index).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "c2sp.org/tlog-proof@v1");
        assert_eq!(lines[1], format!("index {index}"));
        assert_eq!(lines[2 + proof.len()], "");
        assert!(text.ends_with(log.checkpoint().note()));
    }
}

#[test]
fn hash_tiles_above_the_leaves_are_checked_too() {
    let folder = tempfile::tempdir().unwrap();
    let kept = log(folder.path(), &records(0..258))
        .checkpoint()
        .note()
        .to_owned();
    verify(folder.path(), &kept).unwrap();
    for name in ["tile/0/000", "tile/0/001", "tile/1/000"] {
        let path = folder.path().join(name);
        let genuine = fs::read(&path).unwrap();
        let mut edited = genuine.clone();
        edited[31] ^= 1;
        fs::write(&path, &edited).unwrap();
        let damage = verify(folder.path(), &kept).unwrap_err();
        assert_eq!(damage, Damage::HashTile(path.clone()));
        fs::write(&path, &genuine).unwrap();
    }
    let mut longer = fs::read(bundle(folder.path())).unwrap();
    longer.push(0);
    fs::write(bundle(folder.path()), &longer).unwrap();
    assert!(matches!(
        verify(folder.path(), &kept),
        Err(Damage::Surplus { index: 255, .. })
    ));
}

#[test]
fn keys_and_origins_have_one_spelling() {
    let text = log_key().verifying_key().to_string();
    assert_eq!(VerifyingKey::parse(&text).unwrap().to_string(), text);
    assert_eq!(
        VerifyingKey::parse(&format!("{text}\n")).unwrap().origin(),
        ORIGIN
    );
    for wrong in [
        "",
        "a+b",
        "a+00000000+AQ==",
        &text.to_uppercase(),
        &format!("{text} "),
    ] {
        VerifyingKey::parse(wrong).unwrap_err();
    }
    let key = common::user_key();
    for origin in ["", "two words", "a+b", "line\nline", &"a".repeat(256)] {
        SigningKey::new(origin, &key).unwrap_err();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    // Threat model: A144
    #[test]
    fn a_rewritten_log_contradicts_a_kept_checkpoint(
        kept in 1..9_u64,
        more in 0..4_u64,
        changed in any::<prop::sample::Index>(),
        way in 0..4_u8,
    ) {
        let genuine = tempfile::tempdir().unwrap();
        let note = log(genuine.path(), &records(0..kept)).checkpoint().note().to_owned();
        let mut history = records(0..kept + more);
        let changed = changed.index(usize::try_from(kept).unwrap());
        match way {
            0 => history[changed] = record(1000),
            1 => history.insert(changed, record(1000)),
            2 => {
                history.remove(changed);
                history.push(record(1000));
            }
            _ => {
                let next = (changed + 1) % history.len();
                history.swap(changed, next);
            }
        }
        prop_assume!(history[..] != records(0..kept + more)[..]);
        let fork = tempfile::tempdir().unwrap();
        log(fork.path(), &history);
        let reader = Reader::open(fork.path()).unwrap();
        prop_assert!(reader.verify(Kept::default()).is_ok());
        prop_assert_eq!(verify(fork.path(), &note), Err(Damage::Inconsistent(kept)));
    }

    #[test]
    fn any_bytes_in_place_of_a_bundle_are_found(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let (folder, kept) = world();
        fs::write(bundle(folder.path()), bytes).unwrap();
        prop_assert!(verify(folder.path(), &kept).is_err());
    }
}

#[test]
fn a_copied_log_is_the_same_log() {
    let (folder, kept) = world();
    let other = tempfile::tempdir().unwrap();
    copy(folder.path(), other.path()).unwrap();
    verify(other.path(), &kept).unwrap();
    let mut log = Log::open(other.path(), log_key()).unwrap();
    log.append(&signed(&[record(50)])).unwrap();
    verify(other.path(), &kept).unwrap();
}
