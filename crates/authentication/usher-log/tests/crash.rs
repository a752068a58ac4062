//! The state after a crash, a kill or a full disk: no acknowledged record is lost, and the log
//! continues.
#![forbid(unsafe_code)]

mod common;

use common::{checkpoint, copy, log, log_key, record, records, signed};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use std::collections::hash_map::RandomState;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use usher_log::{Kept, Log, LogError, Reader, Record};

fn copied(from: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(from, folder.path()).unwrap();
    folder
}

/// The log opens with exactly these records, continues, and matches the kept checkpoints.
fn goes_on(directory: &Path, expected: &[Record], kept: &[&str]) {
    let mut log = Log::open(directory, log_key()).unwrap();
    let size = expected.len() as u64;
    assert_eq!(log.checkpoint().checkpoint().size, size);
    let reader = Reader::open(directory).unwrap();
    assert_eq!(reader.records(0..size).unwrap(), expected);
    for kept in kept {
        assert_eq!(reader.verify(checkpoint(kept)).unwrap().tail, 0);
    }
    let receipt = log.append(&signed(&[record(2000)])).unwrap();
    assert_eq!(receipt.first, size);
    reader
        .verify(checkpoint(receipt.checkpoint.note()))
        .unwrap();
}

fn bundle(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("tile/entries/{number:03}"))
}

#[test]
fn a_write_torn_at_any_byte_leaves_what_was_whole() {
    let before = tempfile::tempdir().unwrap();
    let kept = log(before.path(), &records(0..3))
        .checkpoint()
        .note()
        .to_owned();
    let after = copied(before.path());
    Log::open(after.path(), log_key())
        .unwrap()
        .append(&signed(&records(3..5)))
        .unwrap();
    let old = fs::read(bundle(before.path(), 0)).unwrap().len();
    let bytes = fs::read(bundle(after.path(), 0)).unwrap();
    let third = old + 2 + record(3).encode().len();
    for length in old..=bytes.len() {
        let whole = 3 + u64::from(length >= third) + u64::from(length == bytes.len());
        // The file ends there, or has its full length with zeros from there on.
        for zeros in [0, bytes.len() - length] {
            let crashed = copied(before.path());
            let torn = [&bytes[..length], &vec![0; zeros]].concat();
            fs::write(bundle(crashed.path(), 0), torn).unwrap();
            let report = Reader::open(crashed.path())
                .unwrap()
                .verify(checkpoint(&kept))
                .unwrap();
            assert_eq!(report.tail, (length + zeros - old) as u64);
            goes_on(crashed.path(), &records(0..whole), &[&kept]);
        }
    }
}

#[test]
fn records_whose_checkpoint_was_lost_are_in_the_log_again() {
    for (size, more) in [(3, 2), (254, 5), (256, 1), (255, 1)] {
        let before = tempfile::tempdir().unwrap();
        let kept = log(before.path(), &records(0..size))
            .checkpoint()
            .note()
            .to_owned();
        let after = copied(before.path());
        let receipt = Log::open(after.path(), log_key())
            .unwrap()
            .append(&signed(&records(size..size + more)))
            .unwrap();
        // First, everything exists except the checkpoint's new name; then only the records exist.
        fs::copy(
            before.path().join("checkpoint"),
            after.path().join("checkpoint"),
        )
        .unwrap();
        let bare = copied(before.path());
        for number in 0..=(size + more) / 256 {
            if let Ok(bytes) = fs::read(bundle(after.path(), number)) {
                fs::write(bundle(bare.path(), number), bytes).unwrap();
            }
        }
        for crashed in [after, bare] {
            let receipt = receipt.checkpoint.note();
            goes_on(crashed.path(), &records(0..size + more), &[&kept, receipt]);
        }
    }
}

#[test]
fn hashes_and_checkpoints_that_were_not_finished_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let kept = log(folder.path(), &records(0..3))
        .checkpoint()
        .note()
        .to_owned();
    for hashes in [0, 1, 32, 95, 96, 97, 200] {
        let crashed = copied(folder.path());
        let tile = crashed.path().join("tile/0/000");
        let mut bytes = fs::read(&tile).unwrap();
        bytes.resize(hashes, 0);
        fs::write(&tile, bytes).unwrap();
        fs::write(
            crashed.path().join("checkpoint.new"),
            &kept.as_bytes()[..hashes.min(50)],
        )
        .unwrap();
        goes_on(crashed.path(), &records(0..3), &[&kept]);
    }
    let crashed = copied(folder.path());
    fs::remove_file(crashed.path().join("tile/0/000")).unwrap();
    goes_on(crashed.path(), &records(0..3), &[&kept]);
}

#[test]
fn a_log_that_is_not_what_was_signed_is_not_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    log(folder.path(), &records(0..258));
    let refused = |name: &str, change: fn(&mut Vec<u8>)| {
        let changed = copied(folder.path());
        let path = changed.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        match Log::open(changed.path(), log_key()) {
            Err(LogError::Damaged(damage)) => damage.kind(),
            other => panic!("{name}: {other:?}"),
        }
    };
    assert_eq!(
        refused("tile/entries/001", |bytes| bytes[100] ^= 1),
        "rewritten"
    );
    assert_eq!(
        refused("tile/entries/001", |bytes| bytes.truncate(9)),
        "truncated"
    );
    assert_eq!(refused("tile/1/000", |bytes| bytes[0] ^= 1), "rewritten");
    assert_eq!(refused("checkpoint", |bytes| bytes[30] ^= 1), "checkpoint");
    assert_eq!(
        refused("verifier-key", |bytes| bytes.truncate(30)),
        "checkpoint"
    );
    let changed = copied(folder.path());
    fs::remove_file(changed.path().join("checkpoint")).unwrap();
    let Err(LogError::Damaged(damage)) = Log::open(changed.path(), log_key()) else {
        panic!("a log without a checkpoint was begun anew");
    };
    assert_eq!(damage.kind(), "checkpoint");
    Log::open(copied(folder.path()).path(), log_key()).unwrap();
}

#[test]
fn a_log_whose_making_was_cut_short_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{}\n", log_key().verifying_key());
    fs::write(folder.path().join("verifier-key"), text).unwrap();
    goes_on(folder.path(), &[], &[]);
}

#[test]
fn one_process_appends_at_a_time_and_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &records(0..2));
    assert!(matches!(
        Log::open(folder.path(), log_key()),
        Err(LogError::Locked(_))
    ));
    Reader::open(folder.path())
        .unwrap()
        .verify(Kept::default())
        .unwrap();
    drop(log);
    Log::open(folder.path(), log_key()).unwrap();
    assert!(matches!(
        Reader::open(&folder.path().join("elsewhere")),
        Err(LogError::NoLog(_))
    ));
}

/// A child of another thread has such a copy between fork and exec.
#[test]
fn a_copied_descriptor_does_not_keep_a_closed_log_locked() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &records(0..1));
    let path = folder.path().join("lock");
    let number = fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|entry| fs::read_link(entry).is_ok_and(|target| target == path))
        .and_then(|entry| entry.file_name()?.to_str()?.parse().ok())
        .expect("the log holds its lock");
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let copy = pidfd_getfd(&own, number, PidfdGetfdFlags::empty()).unwrap();
    assert!(matches!(
        Log::open(folder.path(), log_key()),
        Err(LogError::Locked(_))
    ));
    drop(log);
    Log::open(folder.path(), log_key()).unwrap();
    drop(copy);
}

/// A command that runs this program again for one test in its own process.
fn child(test: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("USHER_LOG_TEST_DIRECTORY", directory);
    command
}

fn directory() -> PathBuf {
    std::env::var_os("USHER_LOG_TEST_DIRECTORY")
        .expect("run by another test")
        .into()
}

#[test]
#[ignore = "run by a_log_killed_at_any_instant_keeps_what_it_acknowledged"]
fn appends_until_killed() {
    let mut log = Log::open(&directory(), log_key()).unwrap();
    let mut next = log.checkpoint().checkpoint().size;
    let batches: [u64; 4] = [1, 3, 2, 7];
    let mut out = std::io::stdout();
    for batch in batches.iter().cycle() {
        log.append(&signed(&records(next..next + batch))).unwrap();
        next += batch;
        writeln!(out, "acknowledged {next}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_log_killed_at_any_instant_keeps_what_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 0..30 {
        let mut process = child("appends_until_killed", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut next = || {
            lines.find_map(|line| {
                let line = line.unwrap();
                line.rsplit_once("acknowledged ")
                    .map(|(_, number)| number.parse().unwrap())
            })
        };
        let begun: u64 = next().expect("the child appends");
        acknowledged = begun;
        let random = RandomState::new().build_hasher().finish();
        std::thread::sleep(Duration::from_micros(random % 30_000));
        process.kill().unwrap();
        process.wait().unwrap();
        while let Some(number) = next() {
            acknowledged = number;
        }
        let reader = Reader::open(folder.path()).unwrap();
        let seen = reader.checkpoint().unwrap();
        assert!(seen.checkpoint().size >= acknowledged, "round {round}");
        let log = Log::open(folder.path(), log_key()).unwrap();
        let size = log.checkpoint().checkpoint().size;
        assert_eq!(reader.verify(checkpoint(seen.note())).unwrap().tail, 0);
        assert_eq!(
            reader.records(0..size).unwrap(),
            records(0..size),
            "round {round}"
        );
    }
    assert!(acknowledged >= 30);
}

#[test]
#[ignore = "run by a_full_disk_refuses_loses_nothing_and_passes"]
fn on_a_small_disk() {
    let directory = directory();
    let filler = directory.join("filler");
    let target = directory.join("log");
    let free = |pages: u64| {
        // Fills the disk, then frees some pages.
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&filler)
            .unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        let length = file.metadata().unwrap().len() / 4096 * 4096;
        file.set_len(length.saturating_sub(pages * 4096)).unwrap();
    };
    let mut log = Log::open(&target, log_key()).unwrap();
    // The next append needs new files of every kind.
    log.append(&signed(&records(0..254))).unwrap();
    let mut refusals = 0;
    for pages in 0.. {
        free(pages);
        let before = log.checkpoint().clone();
        let size = before.checkpoint().size;
        match log.append(&signed(&records(size..size + 4))) {
            Ok(appended) => {
                assert_eq!(appended.first, 254);
                break;
            }
            Err(error) => {
                assert!(error.is_full(), "{error}");
                assert!(error.to_string().contains("make room"), "{error}");
                refusals += 1;
            }
        }
        assert_eq!(log.checkpoint(), &before);
        let reader = Reader::open(&target).unwrap();
        let report = reader.verify(checkpoint(before.note())).unwrap();
        assert_eq!((report.checkpoint, report.tail), (before, 0));
        assert_eq!(reader.records(0..size).unwrap(), records(0..size));
        drop(log);
        log = Log::open(&target, log_key()).unwrap();
    }
    assert!(
        refusals >= 3,
        "an append of several pages was refused {refusals} times only"
    );
    // The log itself now fills the disk.
    fs::remove_file(&filler).unwrap();
    let full = loop {
        let size = log.checkpoint().checkpoint().size;
        if let Err(error) = log.append(&signed(&records(size..size + 50))) {
            break error;
        }
    };
    assert!(full.is_full(), "{full}");
    let kept = log.checkpoint().clone();
    Reader::open(&target)
        .unwrap()
        .verify(checkpoint(kept.note()))
        .unwrap();
    println!(
        "small disk: {refusals} refusals, then {} records",
        kept.checkpoint().size
    );
}

#[test]
fn a_full_disk_refuses_loses_nothing_and_passes() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting a small disk takes root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let test = child("on_a_small_disk", folder.path());
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount -t tmpfs -o size=1m tmpfs \"$0\" && exec \"$@\"")
        .arg(folder.path())
        .arg(test.get_program())
        .args(test.get_args())
        .env("USHER_LOG_TEST_DIRECTORY", folder.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("small disk: "), "{text}");
    println!("{text}");
}

#[test]
fn an_append_of_nothing_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = log(folder.path(), &records(0..2));
    let before = log.checkpoint().clone();
    let appended = log.append(&[]).unwrap();
    assert_eq!((appended.first, appended.checkpoint), (2, before));
}

#[test]
fn a_failed_wait_for_the_disk_is_not_forgotten() {
    // A directory in place of the next checkpoint cannot be renamed over.
    let folder = tempfile::tempdir().unwrap();
    let mut log = log(folder.path(), &records(0..2));
    let kept = log.checkpoint().note().to_owned();
    let checkpoint = folder.path().join("checkpoint");
    fs::rename(&checkpoint, folder.path().join("aside")).unwrap();
    fs::create_dir(&checkpoint).unwrap();
    assert!(matches!(
        log.append(&signed(&[record(2)])),
        Err(LogError::File { .. })
    ));
    assert!(matches!(
        log.append(&signed(&[record(3)])),
        Err(LogError::Unknown)
    ));
    fs::remove_dir(&checkpoint).unwrap();
    fs::rename(folder.path().join("aside"), &checkpoint).unwrap();
    drop(log);
    goes_on(folder.path(), &records(0..3), &[&kept]);
}

/// Prints the wall clock and processor time of an act.
fn timed<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let processor = || {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        Duration::try_from(now).expect("it counts from zero")
    };
    let (wall, busy) = (Instant::now(), processor());
    let result = act();
    println!(
        "{what}: {:?}, of processors {:?}",
        wall.elapsed(),
        processor() - busy
    );
    result
}

/// `cargo test --release -p usher-log --test crash -- --ignored --nocapture figures`
#[test]
#[ignore = "takes a minute and proves nothing: prints how long a log of 100,000 records takes"]
fn figures() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::open(folder.path(), log_key()).unwrap();
    let all: Vec<Record> = (0..100_001).map(common::fresh).collect();
    let (last, most) = all.split_last().unwrap();
    timed("append, 1,000 batches of 100", || {
        for batch in most.chunks(100) {
            log.append(&signed(batch)).unwrap();
        }
    });
    timed("append, 1 record", || {
        log.append(&signed(std::slice::from_ref(last))).unwrap()
    });
    let kept = log.checkpoint().note().to_owned();
    drop(log);
    timed("open", || {
        drop(Log::open(folder.path(), log_key()).unwrap())
    });
    let reader = Reader::open(folder.path()).unwrap();
    timed("verify", || reader.verify(checkpoint(&kept)).unwrap());
    timed("proof of one record", || reader.tlog_proof(54_321).unwrap());
    let lengths = common::files(folder.path()).into_iter();
    let bytes: u64 = lengths.map(|path| fs::metadata(path).unwrap().len()).sum();
    println!("on disk: {bytes} bytes");
}
