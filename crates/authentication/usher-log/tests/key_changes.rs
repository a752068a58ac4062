//! A log's key is changed: what each key has signed stays valid, and nothing else of it.
#![forbid(unsafe_code)]

mod common;

use common::{
    ORIGIN, both_keys, checkpoint, copy, end, key_change, log, log_key, next_key, record, records,
    rewrite, signed,
};
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use usher_log::{
    Damage, Kept, Log, LogError, Reader, Record, RecordError, SignedRecord, SigningKey, SigningKeys,
};
use usher_proto::ssh_key::private::Ed25519Keypair;

const NOW: u64 = 1_800_000_000;

fn third_key() -> SigningKey {
    SigningKey::new(ORIGIN, &Ed25519Keypair::from_seed(&[11; 32]).into()).unwrap()
}

/// A log of two records whose key was changed then, and a record after that.
fn changed() -> (TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = vec![note(&log(folder.path(), &records(1..3)))];
    let mut log = Log::open(folder.path(), both_keys()).unwrap();
    assert!(log.change_key(NOW).unwrap());
    kept.push(note(&log));
    assert!(!log.change_key(NOW).unwrap());
    log.append(&ended(3, &next_key())).unwrap();
    kept.push(note(&log));
    (folder, kept)
}

fn note(log: &Log) -> String {
    log.checkpoint().note().to_owned()
}

/// The end of a session, signed by this key.
fn ended(number: u64, key: &SigningKey) -> [SignedRecord; 1] {
    [SignedRecord::of_end(&end(number), key).unwrap()]
}

fn verify(directory: &Path, kept: Kept<'_>) -> Result<Vec<u64>, Damage> {
    match Reader::open(directory).unwrap().verify(kept) {
        Ok(report) => Ok(report.key_changes),
        Err(LogError::Damaged(damage)) => Err(damage),
        Err(error) => panic!("{error}"),
    }
}

fn under(directory: &Path, key: &SigningKey) -> Result<Vec<u64>, Damage> {
    let kept = Kept {
        key: Some(key.verifying_key()),
        checkpoint: None,
    };
    verify(directory, kept)
}

#[test]
fn checkpoints_and_keys_from_before_and_after_a_change_count() {
    let (folder, kept) = changed();
    for note in &kept {
        assert_eq!(verify(folder.path(), checkpoint(note)), Ok(vec![2]));
    }
    for key in [log_key(), next_key()] {
        assert_eq!(under(folder.path(), &key), Ok(vec![2]));
    }
    let third = third_key().verifying_key().to_string();
    let refused = under(folder.path(), &third_key());
    assert!(
        matches!(&refused, Err(Damage::OtherKey { kept, .. }) if *kept == third),
        "{refused:?}"
    );
    let reader = Reader::open(folder.path()).unwrap();
    let [former, next] = [log_key(), next_key()].map(|key| key.verifying_key().public_key());
    for (index, key) in [(0, former), (1, former), (2, former), (3, next), (4, next)] {
        assert_eq!(reader.key_at(index).unwrap(), key, "{index}");
    }

    // A second change; and two records that are in one bundle each.
    let keys = SigningKeys {
        present: next_key(),
        next: Some(third_key()),
    };
    let mut log = Log::open(folder.path(), keys).unwrap();
    let many: Vec<_> = (4..300)
        .flat_map(|number| ended(number, &next_key()))
        .collect();
    log.append(&many).unwrap();
    assert!(log.change_key(NOW).unwrap());
    log.append(&ended(300, &third_key())).unwrap();
    for key in [log_key(), next_key(), third_key()] {
        assert_eq!(under(folder.path(), &key), Ok(vec![2, 300]));
    }
    for note in &kept {
        assert_eq!(verify(folder.path(), checkpoint(note)), Ok(vec![2, 300]));
    }
}

#[test]
fn a_former_key_signs_nothing_after_its_change() {
    let (folder, kept) = changed();
    // The end of a session, under a checkpoint of the present key.
    let by_former = tempfile::tempdir().unwrap();
    copy(folder.path(), by_former.path()).unwrap();
    let mut log = Log::open(by_former.path(), next_key()).unwrap();
    log.append(&ended(4, &log_key())).unwrap();
    log.append(&ended(5, &next_key())).unwrap();
    drop(log);
    let refused = verify(by_former.path(), Kept::default());
    assert!(
        matches!(
            refused,
            Err(Damage::Forged {
                index: 4,
                error: RecordError::OtherLog,
                ..
            })
        ),
        "{refused:?}"
    );
    // The next key signs nothing before it either.
    let by_next = tempfile::tempdir().unwrap();
    let mut log = common::log(by_next.path(), &records(0..1));
    log.append(&ended(2, &next_key())).unwrap();
    drop(log);
    let mut log = Log::open(by_next.path(), both_keys()).unwrap();
    assert!(log.change_key(NOW).unwrap());
    let refused = verify(by_next.path(), Kept::default());
    assert!(
        matches!(refused, Err(Damage::Forged { index: 1, .. })),
        "{refused:?}"
    );

    // A checkpoint of the former key, of the log as it is and of a longer one.
    for more in [0, 1] {
        let fork = tempfile::tempdir().unwrap();
        let mut forged = vec![record(1), record(2), Record::KeyChange(key_change(2))];
        forged.extend((3..4 + more).map(record));
        drop(common::log(fork.path(), &records(1..2)));
        rewrite(fork.path(), 9, &forged);
        let note = fs::read_to_string(fork.path().join("checkpoint")).unwrap();
        let refused = verify(folder.path(), checkpoint(&note));
        assert!(
            matches!(refused, Err(Damage::KeptCheckpoint(_))),
            "{refused:?}"
        );
    }
    verify(folder.path(), checkpoint(&kept[2])).unwrap();
    // And the log is not opened with it.
    assert!(matches!(
        Log::open(folder.path(), log_key()),
        Err(LogError::OtherKey { .. })
    ));
}

#[test]
fn a_change_counts_at_its_place_only() {
    for (index, sound) in [(0, false), (1, true), (2, false)] {
        let folder = tempfile::tempdir().unwrap();
        drop(Log::open(folder.path(), next_key()).unwrap());
        fs::create_dir_all(folder.path().join("tile/entries")).unwrap();
        fs::create_dir_all(folder.path().join("tile/0")).unwrap();
        rewrite(
            folder.path(),
            10,
            &[record(2), Record::KeyChange(key_change(index)), record(3)],
        );
        match verify(folder.path(), Kept::default()) {
            Ok(changes) => assert!(sound && changes == [1], "{index}"),
            Err(Damage::Forged { .. }) => assert!(!sound, "{index}"),
            Err(damage) => panic!("{damage}"),
        }
        assert_eq!(under(folder.path(), &log_key()).is_ok(), sound);
    }
}

#[test]
fn a_change_that_a_crash_cut_short_is_taken_back_or_finished() {
    let before = tempfile::tempdir().unwrap();
    let kept = note(&log(before.path(), &records(1..3)));
    let after = tempfile::tempdir().unwrap();
    copy(before.path(), after.path()).unwrap();
    let mut log = Log::open(after.path(), both_keys()).unwrap();
    assert!(log.change_key(NOW).unwrap());
    drop(log);
    let state = |files: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        copy(before.path(), folder.path()).unwrap();
        for file in files {
            fs::copy(after.path().join(file), folder.path().join(file)).unwrap();
        }
        folder
    };
    let (record, hash) = ("tile/entries/000", "tile/0/000");
    for (files, finished) in [
        (&[][..], false),
        (&[record][..], false),
        (&[record, hash][..], false),
        (&[record, hash, "checkpoint"][..], true),
        (&[record, hash, "checkpoint", "verifier-key"][..], true),
    ] {
        // As it is, a reader finds it sound.
        let folder = state(files);
        verify(folder.path(), checkpoint(&kept)).unwrap();
        verify(folder.path(), Kept::default()).unwrap();
        let mut log = Log::open(folder.path(), both_keys()).unwrap();
        assert_eq!(log.change_key(NOW).unwrap(), !finished, "{files:?}");
        log.append(&ended(3, &next_key())).unwrap();
        drop(log);
        for key in [log_key(), next_key()] {
            assert_eq!(under(folder.path(), &key), Ok(vec![2]), "{files:?}");
        }
        verify(folder.path(), checkpoint(&kept)).unwrap();
        // Afterwards it stays so, whether the files of the keys have changed places or not.
        Log::open(folder.path(), both_keys()).unwrap();
        Log::open(folder.path(), next_key()).unwrap();

        // Without the next key the log does not continue, unless the change was taken back.
        let folder = state(files);
        match (Log::open(folder.path(), log_key()), files) {
            (Ok(_), _) => assert!(!finished, "{files:?}"),
            (Err(LogError::UnfinishedChange { .. }), [.., "checkpoint"])
            | (Err(LogError::OtherKey { .. }), [.., "verifier-key"]) => {}
            (other, _) => panic!("{files:?}: {other:?}"),
        }
    }
}

#[test]
fn a_reader_follows_a_change() {
    let folder = tempfile::tempdir().unwrap();
    drop(log(folder.path(), &records(1..3)));
    let reader = Reader::open(folder.path()).unwrap();
    reader.checkpoint().unwrap();
    let mut log = Log::open(folder.path(), both_keys()).unwrap();
    assert!(log.change_key(NOW).unwrap());
    // The first checkpoint after it is signed by both, the next by the next key.
    assert_eq!(reader.checkpoint().unwrap().checkpoint().size, 3);
    log.append(&signed(&[record(3)])).unwrap();
    assert_eq!(reader.checkpoint().unwrap().checkpoint().size, 4);
    for note in [note(&log), reader.checkpoint().unwrap().note().to_owned()] {
        next_key().verifying_key().open(&note).unwrap();
        log_key().verifying_key().open(&note).unwrap_err();
    }
}
