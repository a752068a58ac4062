//! Labels from real tables and iterators of the kernel (bpf/mac/shown.bpf.c): by a user without a privilege. Runs in
//! a mount namespace of its own, with its own BPF file system.

use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use libbpf_rs::{IterOpts, MapCore, MapFlags, MapIterOpts, Object, ObjectBuilder};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use usher_bpf::Pins;
use usher_label::{ElementKind, TypedValue};
use usher_mac::NewFileLabels;
use usher_system_label::process::{
    OWN, PROCESSES, ProcessLabelError, SHOWN, label_of_process, labels_of_processes,
};

const BPF: &str = "/sys/fs/bpf";
const TABLES: &str = "/sys/fs/bpf/tables";
const USER: u32 = 65534;

/// The programs and their tables, in a BPF file system that nobody else sees.
fn loaded() -> Object {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(none, BPF, Some("bpf"), MsFlags::empty(), Some("mode=0711")).unwrap();
    fs::create_dir(TABLES).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("shown.o");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let compiled = Command::new("clang")
        .args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror",
        ])
        .args(["-idirafter", &headers, "-I"])
        .arg(here.join("../../../bpf/include"))
        .arg("-c")
        .arg(here.join("tests/tables.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status();
    assert!(compiled.unwrap().success());
    let opened = ObjectBuilder::default().open_file(&object).unwrap();
    let mut loaded = opened.load().unwrap();
    for mut map in loaded.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if !name.contains('.') {
            map.pin(Path::new(TABLES).join(name)).unwrap();
        }
    }
    loaded
}

/// Pins the iterators as the labeller does.
fn show(object: &Object) {
    fs::create_dir(SHOWN).unwrap();
    let once = object.maps().find(|map| map.name() == "once").unwrap();
    for (program, options, name) in [
        (
            "show_reader",
            IterOpts::Map(MapIterOpts::from_fd(once.as_fd())),
            OWN,
        ),
        ("show_processes", IterOpts::None, PROCESSES),
    ] {
        let program = object
            .progs_mut()
            .find(|found| found.name() == program)
            .unwrap();
        let mut link = program.attach_iter_with_opts(options).unwrap();
        let place = Path::new(SHOWN).join(name);
        link.pin(&place).unwrap();
        fs::set_permissions(place, Permissions::from_mode(0o444)).unwrap();
    }
}

/// The tables, as the labeller locks them.
fn tables() -> Pins {
    Pins::lock(Path::new(TABLES)).unwrap()
}

fn put(object: &Object, map: &str, key: &[u8], value: &[u8]) {
    let map = object.maps().find(|one| one.name() == map).unwrap();
    map.update(key, value, MapFlags::ANY).unwrap();
}

fn module(object: &Object, slot: u32, name: &str, order: u64) {
    let mut module = [0; 72];
    module[..name.len()].copy_from_slice(name.as_bytes());
    module[32..40].copy_from_slice(&order.to_ne_bytes());
    put(object, "modules", &slot.to_ne_bytes(), &module);
}

fn element(object: &Object, number: u32, value: &TypedValue, slot: u32, order: u64) {
    let mut entry = [0; 136];
    entry[..120].copy_from_slice(&value.to_bytes());
    entry[120..128].copy_from_slice(&order.to_ne_bytes());
    entry[128..132].copy_from_slice(&slot.to_ne_bytes());
    put(object, "elements", &number.to_ne_bytes(), &entry);
}

/// A label of numbers, in bytes.
fn label(numbers: [u32; 8]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_ne_bytes())
        .collect()
}

fn put_process(object: &Object, process: Pid, numbers: [u32; 8]) {
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let value = [&[0; 8][..], &label(numbers), &[0; 112]].concat();
    put(
        object,
        "processes",
        &process.as_raw_fd().to_ne_bytes(),
        &value,
    );
}

fn put_file(object: &Object, file: &File, numbers: [u32; 8], state: u32) {
    let state = state.to_ne_bytes();
    let value = [&[0; 8][..], &label(numbers), &[0; 8], &state, &[0; 4]].concat();
    put(object, "files", &file.as_raw_fd().to_ne_bytes(), &value);
}

fn value(kind: ElementKind, text: &str) -> TypedValue {
    kind.read(&text.parse().unwrap()).unwrap()
}

/// Acts with the effective user of nobody, and so without a capability.
fn as_user(act: impl FnOnce()) {
    let former = nix::unistd::geteuid();
    nix::unistd::seteuid(nix::unistd::Uid::from_raw(USER)).unwrap();
    act();
    nix::unistd::seteuid(former).unwrap();
}

fn of(process: Option<i32>) -> String {
    label_of_process(process).unwrap().to_string()
}

// Threat model: M118
#[test]
fn labels_are_shown_to_everyone_and_tables_to_nobody() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root loads programs");
        return;
    }
    let object = loaded();
    as_user(|| assert_eq!(of(None), ""));
    show(&object);
    module(&object, 0, "biba", 7);
    module(&object, 2, "te", 9);
    element(
        &object,
        1,
        &value(ElementKind::Levels, "high(low-high)"),
        0,
        7,
    );
    element(&object, 5, &value(ElementKind::Name, "httpd_t"), 2, 9);
    // The element of a module that was in the slot before.
    element(&object, 6, &value(ElementKind::Name, "former"), 2, 8);
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let other = i32::try_from(child.id()).unwrap();

    as_user(|| {
        assert_eq!(of(None), "", "nothing is stored yet");
        assert_eq!(of(Some(other)), "");
    });
    put_process(&object, getpid(), [1, 0, 5, 0, 0, 0, 0, 0]);
    put_process(
        &object,
        Pid::from_raw(other).unwrap(),
        [1, 0, 6, 0, 0, 0, 0, 0],
    );
    let pins = tables();
    as_user(|| {
        let own = getpid().as_raw_nonzero().get();
        assert_eq!(of(None), "biba/high(low-high),te/httpd_t");
        assert_eq!(of(Some(own)), "biba/high(low-high),te/httpd_t");
        assert_eq!(of(Some(other)), "biba/high(low-high)");
        let all = labels_of_processes().unwrap();
        let labelled = all.iter().filter(|(_, label)| !label.is_empty());
        assert_eq!(labelled.count(), 2);
        for process in [-1, 0, i32::MAX] {
            let refused = label_of_process(Some(process)).unwrap_err();
            assert_eq!(refused, ProcessLabelError::NoProcess(process));
        }
        // Neither by a table's pin nor by an iterator's does a user get a table.
        assert!(NewFileLabels::open(&pins).is_err());
        for name in [OWN, PROCESSES] {
            let place = Path::new(SHOWN).join(name);
            assert!(libbpf_rs::Link::open(&place).is_err(), "{name}");
            assert!(fs::remove_file(&place).is_err(), "{name}");
        }
    });
    // Another thread has the label of its process.
    let thread = std::thread::spawn(|| label_of_process(None).unwrap().to_string());
    assert_eq!(thread.join().unwrap(), "biba/high(low-high),te/httpd_t");
    drop(child.stdin.take());
    child.wait().unwrap();
    let refused = label_of_process(Some(other)).unwrap_err();
    assert_eq!(refused, ProcessLabelError::NoProcess(other));

    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let labels = NewFileLabels::open(&pins).unwrap();
    assert_eq!(labels.of(file.as_file().as_fd()).unwrap(), None);
    put_file(&object, file.as_file(), [1, 0, 6, 0, 0, 0, 0, 0], 2);
    // By a descriptor that reads nothing.
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let path = openat(CWD, file.path(), flags, Mode::empty()).unwrap();
    let found = labels.of(path.as_fd()).unwrap().unwrap();
    assert_eq!(found.to_string(), "biba/high(low-high)");
    // Only labels of new files are returned: the attribute of this file has its label already.
    put_file(&object, file.as_file(), [1, 0, 6, 0, 0, 0, 0, 0], 1);
    assert_eq!(labels.of(path.as_fd()).unwrap(), None);
}
