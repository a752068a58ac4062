//! A log's key is changed: records that each key has signed in its time stay valid, and no others.
#![forbid(unsafe_code)]

mod common;

use common::{
    ORIGIN, both_keys, checkpoint, copy, end, key_change, keys, log, log_key, next_key, record,
    records, rewrite, signed,
};
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use usher_log::merkle::{Frontier, leaf_hash};
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

/// The root of the tree over these records.
fn root(records: &[Record]) -> [u8; 32] {
    let mut tree = Frontier::default();
    for record in records {
        tree.push(leaf_hash(&record.encode()), |_, _, _| {});
    }
    tree.root()
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
    for (index, key) in [
        (0, (former, 2)),
        (2, (former, 2)),
        (3, (next, u64::MAX)),
        (4, (next, u64::MAX)),
    ] {
        assert_eq!(reader.key_at(index).unwrap(), key, "{index}");
    }

    // A second change; and two records that are in one bundle each.
    let mut log = Log::open(folder.path(), keys(next_key(), third_key())).unwrap();
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
    // The next key signs nothing before the change either.
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
        let mut forged = vec![
            record(1),
            record(2),
            Record::KeyChange(key_change(2, root(&records(1..3)))),
        ];
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
    // The log is not opened with the former key.
    assert!(matches!(
        Log::open(folder.path(), log_key()),
        Err(LogError::OtherKey { .. })
    ));
}

#[test]
fn a_change_counts_at_its_place_only() {
    let before = root(&[record(2)]);
    for (index, root, sound) in [
        (0, before, false),
        (1, before, true),
        (2, before, false),
        (1, [0; 32], false),
        (1, root(&[record(1)]), false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        drop(Log::open(folder.path(), next_key()).unwrap());
        fs::create_dir_all(folder.path().join("tile/entries")).unwrap();
        fs::create_dir_all(folder.path().join("tile/0")).unwrap();
        rewrite(
            folder.path(),
            10,
            &[
                record(2),
                Record::KeyChange(key_change(index, root)),
                record(3),
            ],
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
            let from = file.trim_end_matches(".new");
            fs::copy(after.path().join(from), folder.path().join(file)).unwrap();
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
        (&[record, hash, "checkpoint", "verifier-key.new"][..], true),
    ] {
        // A reader finds the log sound in this state.
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
        // Afterwards the log opens, whether the files of the keys have changed places or not.
        Log::open(folder.path(), both_keys()).unwrap();
        Log::open(folder.path(), next_key()).unwrap();

        // Without the next key the log does not continue, unless the change was taken back.
        let folder = state(files);
        match (Log::open(folder.path(), log_key()), files) {
            (Ok(_), _) => assert!(!finished, "{files:?}"),
            (Err(LogError::UnfinishedChange { .. }), [.., "checkpoint" | "verifier-key.new"])
            | (Err(LogError::OtherKey { .. }), [.., "verifier-key"]) => {}
            (other, _) => panic!("{files:?}: {other:?}"),
        }
    }
}

#[test]
fn a_refused_record_is_named_and_hides_no_change() {
    let (folder, kept) = changed();
    let reader = Reader::open(folder.path()).unwrap();
    for kept in [
        checkpoint(&kept[2]),
        Kept {
            key: Some(log_key().verifying_key()),
            checkpoint: None,
        },
    ] {
        let refused = reader.verify_with(kept, |index, _| match index {
            0 => Err(Damage::Inconsistent(0)),
            _ => Ok(()),
        });
        assert!(
            matches!(refused, Err(LogError::Damaged(Damage::Inconsistent(0)))),
            "{refused:?}"
        );
    }
}

#[test]
fn nothing_gets_between_an_unfinished_change_and_its_end() {
    let half = tempfile::tempdir().unwrap();
    drop(log(half.path(), &records(1..3)));
    let mut log = Log::open(half.path(), both_keys()).unwrap();
    assert!(log.change_key(NOW).unwrap());
    drop(log);
    // The name of the next key was lost, and somebody writes a record that was signed once behind the change.
    let key = format!("{}\n", log_key().verifying_key());
    fs::write(half.path().join("verifier-key"), key).unwrap();
    let bundle = half.path().join("tile/entries/000");
    let entry = record(1).encode();
    let mut bytes = fs::read(&bundle).unwrap();
    bytes.extend(u16::try_from(entry.len()).unwrap().to_be_bytes());
    bytes.extend(entry);
    fs::write(&bundle, bytes).unwrap();
    let mut log = Log::open(half.path(), both_keys()).unwrap();
    assert!(!log.change_key(NOW).unwrap());
    log.append(&ended(3, &next_key())).unwrap();
    assert_eq!(under(half.path(), &log_key()), Ok(vec![2]));
}

#[test]
fn a_log_set_back_behind_a_change_is_found_by_a_later_key() {
    let (folder, kept) = changed();
    let before = tempfile::tempdir().unwrap();
    drop(log(before.path(), &records(1..3)));
    let by = |key: Option<SigningKey>| {
        let key = key.map(|key| key.verifying_key().clone());
        let kept = Kept {
            checkpoint: Some(&kept[2]),
            key: key.as_ref(),
        };
        verify(before.path(), kept).unwrap_err()
    };
    assert_eq!(by(Some(next_key())), Damage::Behind { kept: 4, size: 2 });
    assert!(matches!(by(None), Damage::KeptCheckpoint(_)));
    assert!(matches!(by(Some(third_key())), Damage::KeptCheckpoint(_)));
    verify(folder.path(), checkpoint(&kept[2])).unwrap();
}

#[test]
fn a_change_that_no_checkpoint_covers_makes_no_key() {
    let (folder, _) = changed();
    let reader = Reader::open(folder.path()).unwrap();
    let place = folder.path().join("tile/entries/000");
    let genuine = fs::read(&place).unwrap();
    let change = Record::KeyChange(key_change(2, root(&records(1..3)))).encode();
    let at = genuine
        .windows(change.len())
        .position(|part| part[0] == 3 && part[1..40] == change[1..40]);
    let at = at.unwrap();
    // An intruder puts a change of his own in its place, made for this record or for another one.
    for other in [key_change(2, [0; 32]), key_change(7, [0; 32])] {
        let other = Record::KeyChange(other).encode();
        let mut bytes = genuine.clone();
        bytes[at..at + other.len()].copy_from_slice(&other);
        fs::write(&place, bytes).unwrap();
        reader.key_at(0).unwrap_err();
    }
    fs::write(&place, genuine).unwrap();
    reader.key_at(0).unwrap();
}

#[test]
fn a_next_key_has_the_name_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    drop(log(folder.path(), &records(1..3)));
    let pair = Ed25519Keypair::from_seed(&[10; 32]);
    let mut keys = SigningKeys::from(log_key());
    let other = SigningKey::new("other/usher", &pair.into()).unwrap();
    assert!(matches!(
        keys.add_next(other),
        Err(LogError::NextKeyOfOther { .. })
    ));
    let mut log = Log::open(folder.path(), keys).unwrap();
    assert!(!log.change_key(NOW).unwrap());
    drop(log);
    verify(folder.path(), Kept::default()).unwrap();
    Log::open(folder.path(), both_keys()).unwrap();
}

#[test]
fn a_reader_follows_a_change() {
    let folder = tempfile::tempdir().unwrap();
    drop(log(folder.path(), &records(1..3)));
    let reader = Reader::open(folder.path()).unwrap();
    reader.checkpoint().unwrap();
    let mut log = Log::open(folder.path(), both_keys()).unwrap();
    assert!(log.change_key(NOW).unwrap());
    // Both keys sign the first checkpoint after the change, the next key the second.
    assert_eq!(reader.checkpoint().unwrap().checkpoint().size, 3);
    log.append(&signed(&[record(3)])).unwrap();
    assert_eq!(reader.checkpoint().unwrap().checkpoint().size, 4);
    for note in [note(&log), reader.checkpoint().unwrap().note().to_owned()] {
        next_key().verifying_key().open(&note).unwrap();
        log_key().verifying_key().open(&note).unwrap_err();
    }
}
