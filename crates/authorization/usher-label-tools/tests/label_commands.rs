//! The commands as users run them, on real files: on the file system of the temporary directory, and
//! on a tmpfs. They run as root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use usher_system_label::file::LabelledFile;

struct Tree {
    folder: tempfile::TempDir,
}

impl Tree {
    /// A tree on each file system.
    fn each() -> Vec<Self> {
        let parents = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
        parents.map(|parent| Self::on(&parent)).into()
    }

    fn on(parent: &Path) -> Self {
        let folder = tempfile::tempdir_in(parent).unwrap();
        let root = folder.path().join("tree");
        for directory in ["a", "b/mount", "c"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["a/x", "b/y", "c/new\nline", "c/z"] {
            fs::write(root.join(file), "").unwrap();
        }
        symlink("../a/x", root.join("c/link")).unwrap();
        Self { folder }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join("tree").join(below)
    }

    fn root(&self) -> String {
        self.folder.path().join("tree").display().to_string()
    }

    /// Writes a specification file. `ROOT` stands for the tree.
    fn specification(&self, text: &str) -> String {
        let path = self.folder.path().join("specification");
        fs::write(&path, text.replace("ROOT", &self.root())).unwrap();
        path.display().to_string()
    }

    fn label(&self, below: &str) -> Option<String> {
        let path = self.path(below);
        let label = LabelledFile::Link(&path).label().unwrap();
        label.map(|label| label.to_string())
    }

    fn set(&self, below: &str, label: &str) {
        let path = self.path(below);
        LabelledFile::Link(&path)
            .set(&label.parse().unwrap())
            .unwrap();
    }
}

fn path_of(program: &str) -> &'static str {
    match program {
        "getfmac" => env!("CARGO_BIN_EXE_getfmac"),
        "setfmac" => env!("CARGO_BIN_EXE_setfmac"),
        "getpmac" => env!("CARGO_BIN_EXE_getpmac"),
        "setpmac" => env!("CARGO_BIN_EXE_setpmac"),
        _ => env!("CARGO_BIN_EXE_setfsmac"),
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(path_of(program));
    command.args(arguments).output().unwrap()
}

fn succeeds(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a command that exits 1.
fn fails(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn setfmac_sets_what_getfmac_prints() {
    for tree in Tree::each() {
        let file = tree.path("a/x").display().to_string();
        let link = tree.path("c/link").display().to_string();
        succeeds("setfmac", &["mls/low,biba/high", &link]);
        succeeds("setfmac", &["-h", "biba/low", &link]);
        assert_eq!(tree.label("a/x").as_deref(), Some("biba/high,mls/low"));
        assert_eq!(tree.label("c/link").as_deref(), Some("biba/low"));
        let printed = succeeds("getfmac", &["-l", "?mls", &file]);
        assert_eq!(printed, format!("{file}: mls/low\n"));
        let printed = succeeds("getfmac", &["-h", "-l", "?mls", "--json", &link]);
        assert_eq!(printed, format!("{{\"label\":null,\"path\":\"{link}\"}}\n"));
        let said = fails("getfmac", &["-l", "partition", &file]);
        assert!(said.contains("no element `partition`"), "{said}");
        let said = fails("setfmac", &["biba", &file]);
        assert!(said.contains("write it as `NAME/VALUE`"), "{said}");
    }
}

// Threat model: M92
#[test]
fn only_a_process_with_the_privilege_sets_labels() {
    let tree = Tree::on(Path::new("/dev/shm"));
    let file = tree.path("a/x").display().to_string();
    let set = |capabilities: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", capabilities, "--inh-caps", capabilities]);
        command.arg(env!("CARGO_BIN_EXE_setfmac"));
        command.args(["biba/low", &file]).output().unwrap()
    };
    let output = set("-sys_admin");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the caller lacks CAP_SYS_ADMIN"), "{said}");
    assert_eq!(tree.label("a/x"), None);
    assert!(set("-net_admin").status.success());
    assert_eq!(tree.label("a/x").as_deref(), Some("biba/low"));
}

// Threat model: M112
#[test]
fn setfmac_labels_trees_and_follows_no_link_in_them() {
    for tree in Tree::each() {
        let outside = tree.folder.path().join("outside");
        fs::write(&outside, "").unwrap();
        symlink(&outside, tree.path("a/way_out")).unwrap();
        let printed = succeeds("setfmac", &["-R", "--json", "biba/low", &tree.root()]);
        assert_eq!(printed.lines().count(), 11);
        for below in ["", "a", "a/x", "a/way_out", "c/new\nline"] {
            assert_eq!(tree.label(below).as_deref(), Some("biba/low"), "{below}");
        }
        assert_eq!(LabelledFile::Path(&outside).label(), Ok(None));
    }
}

#[test]
fn setfmac_replaces_a_foreign_attribute_only_when_told() {
    for tree in Tree::each() {
        let path = tree.path("a/x");
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, usher_system_label::file::ATTRIBUTE, b"?", none).unwrap();
        let file = path.display().to_string();
        let said = fails("setfmac", &["biba/low", &file]);
        assert!(said.contains("is not a label"), "{said}");
        succeeds("setfmac", &["--replace", "biba/low", &file]);
        assert_eq!(tree.label("a/x").as_deref(), Some("biba/low"));
    }
}

#[test]
fn setfsmac_labels_a_tree_by_its_last_matching_lines() {
    for tree in Tree::each() {
        tree.set("b", "mls/high");
        tree.set("b/y", "biba/high");
        let file = tree
            .specification("ROOT/.* biba/low\nROOT/b/.* -- biba/high\nROOT/c/link -l biba/equal\n");
        let printed = succeeds("setfsmac", &["-f", &file, "--json", &tree.root()]);
        let expected = "{\"changed\":1,\"failed\":0,\"files\":10,\"first\":7,\"passed\":0,\
                        \"unchanged\":1,\"unlabelled\":1,\"unmatched\":0,\"whole\":true}\n";
        assert_eq!(printed, expected);
        for (below, expected) in [
            ("", None),
            ("a/x", Some("biba/low")),
            ("b", Some("biba/low,mls/high")),
            ("b/mount", Some("biba/low")),
            ("b/y", Some("biba/high")),
            ("c/link", Some("biba/equal")),
            ("c/new\nline", Some("biba/low")),
        ] {
            assert_eq!(tree.label(below).as_deref(), expected, "{below}");
        }
        let printed = succeeds("setfsmac", &["-v", "-f", &file, &tree.root()]);
        let told = format!("{}: biba/high by {file}:2\n", tree.path("b/y").display());
        assert!(printed.contains(&told), "{printed}");
    }
}

#[test]
fn a_dry_run_of_setfsmac_sets_nothing() {
    let tree = Tree::on(Path::new("/dev/shm"));
    let file = tree.specification("ROOT/.* biba/low\n");
    let printed = succeeds("setfsmac", &["-n", "-f", &file, &tree.root()]);
    assert!(
        printed.starts_with("10 files: 9 labelled for the first time"),
        "{printed}"
    );
    assert_eq!(tree.label("a/x"), None);
    succeeds("setfsmac", &["-f", &file, &tree.root()]);
    assert_eq!(tree.label("a/x").as_deref(), Some("biba/low"));
}

// Threat model: M115
#[test]
fn setfsmac_finds_and_labels_files_without_a_label() {
    for tree in Tree::each() {
        let everything = tree.specification("ROOT(/.*)? biba/low\n");
        succeeds("setfsmac", &["-q", "-f", &everything, &tree.root()]);
        fs::write(tree.path("a/new"), "").unwrap();
        fs::write(tree.path("c/new"), "").unwrap();
        let some = tree.specification("ROOT/a(/.*)? biba/high\n");
        let printed = succeeds("setfsmac", &["-n", "-u", "-f", &some, &tree.root()]);
        let lines: Vec<_> = printed.lines().collect();
        let root = tree.root();
        assert!(
            lines[0].starts_with(&format!("{root}/a/new: biba/high by ")),
            "{printed}"
        );
        assert_eq!(
            lines[1],
            format!("{root}/c/new: no label and no specification")
        );
        assert_eq!(lines.len(), 3, "{printed}");
        assert_eq!(tree.label("a/new"), None);
        succeeds("setfsmac", &["-u", "-f", &some, &tree.root()]);
        assert_eq!(tree.label("a/new").as_deref(), Some("biba/high"));
        assert_eq!(tree.label("a/x").as_deref(), Some("biba/low"));
        assert_eq!(tree.label("c/new"), None);
    }
}

#[test]
fn progress_is_printed_where_it_is_wanted() {
    let tree = Tree::on(Path::new("/dev/shm"));
    let file = tree.specification("ROOT/.* biba/low\n");
    let said = |more: &[&str]| {
        let root = tree.root();
        let arguments = [more, &["-n", "-f", &file, &root]].concat();
        String::from_utf8(run("setfsmac", &arguments).stderr).unwrap()
    };
    let told = format!(
        "setfsmac: 1 files: 0 labelled for the first time, 0 changed, 0 unchanged, \
                        0 without a specification, 1 of no label; 0 places keep no labels, 0 \
                        failed; at {}\n",
        tree.root()
    );
    assert!(said(&["--progress"]).starts_with(&told));
    assert_eq!(said(&[]), "");
}

#[test]
fn setfsmac_with_a_mistake_labels_nothing() {
    let tree = Tree::on(Path::new("/dev/shm"));
    let file = tree.specification("ROOT/.* biba/low\nROOT/( biba/low\n");
    let said = fails("setfsmac", &["-f", &file, &tree.root()]);
    let column = tree.root().len() + 2;
    let told = format!("{file}:2:{column}: the pattern is not a regular expression");
    assert!(said.contains(&told), "{said}");
    assert_eq!(tree.label("a/x"), None);
    let file = tree.specification("ROOT/.* biba/low\n");
    for path in ["tree", "/dev/../etc", "/dev//shm", "/dev/./shm"] {
        let said = fails("setfsmac", &["-n", "-f", &file, path]);
        assert!(said.contains("not an absolute path without"), "{said}");
    }
}

// Threat model: M113
#[test]
fn a_second_name_of_a_file_cannot_change_its_label() {
    let tree = Tree::on(Path::new("/dev/shm"));
    fs::hard_link(tree.path("a/x"), tree.path("c/x")).unwrap();
    let file = tree.specification("ROOT/.* biba/high\nROOT/c/.* biba/low\n");
    let said = fails("setfsmac", &["-f", &file, &tree.root()]);
    assert!(
        said.contains("has another name, for which the label is biba/high"),
        "{said}"
    );
    assert_eq!(tree.label("c/x").as_deref(), Some("biba/high"));
    assert_eq!(tree.label("c/z").as_deref(), Some("biba/low"));
    // One label for both names.
    let file = tree.specification("ROOT/.* biba/equal\n");
    succeeds("setfsmac", &["-f", &file, &tree.root()]);
    assert_eq!(tree.label("c/x").as_deref(), Some("biba/equal"));
}

/// Runs setfsmac where proc, which keeps no labels, is mounted in the middle of the tree.
fn with_proc(tree: &Tree, arguments: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-ec",
        "mount -t proc none \"$1\"; shift; exec \"$0\" \"$@\"",
    ]);
    command
        .arg(env!("CARGO_BIN_EXE_setfsmac"))
        .arg(tree.path("b/mount"));
    command.args(arguments).arg(tree.root()).output().unwrap()
}

#[test]
fn a_file_system_without_labels_is_passed_or_stops_the_run() {
    for tree in Tree::each() {
        let file = tree.specification("ROOT(/.*)? biba/low\n");
        let output = with_proc(&tree, &["-e", "-f", &file]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains("/tree/b/mount: its file system"), "{said}");
        assert_eq!(tree.label("c/z"), None);
        let output = with_proc(&tree, &["-f", &file]);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(
            printed.contains("1 places keep no labels, 0 failed"),
            "{printed}"
        );
        assert_eq!(tree.label("c/z").as_deref(), Some("biba/low"));
        let output = with_proc(&tree, &["-e", "-x", "-f", &file]);
        assert!(output.status.success(), "{output:?}");
    }
}

/// Runs a command where /proc is an empty folder.
fn without_proc(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec"]);
    command.arg(r#"mount -t tmpfs none /proc; exec "$0" "$@""#);
    command.arg(path_of(program));
    command.args(arguments).output().unwrap()
}

#[test]
fn a_missing_proc_is_told_once_and_not_for_each_file() {
    for program in ["setfsmac", "setfmac"] {
        let tree = Tree::on(Path::new("/dev/shm"));
        let file = tree.specification("ROOT(/.*)? biba/low\n");
        let root = tree.root();
        let arguments = match program {
            "setfsmac" => ["-f", &file, &root],
            _ => ["-R", "biba/low", &root],
        };
        let output = without_proc(program, &arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let told = format!("{program}: cannot use /proc/self/fd");
        assert!(said.starts_with(&told), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(tree.label("c/z"), None);
        succeeds(program, &arguments);
        assert_eq!(tree.label("c/z").as_deref(), Some("biba/low"));
    }
}

/// Mounts a FUSE file system whose server ends before it answers: whatever asks it fails with ENOTCONN.
const DEAD: &str = r#"
import ctypes, os, sys
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40755,user_id=0,group_id=0"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
"#;

/// Executes a program for which openat2(2) fails with the given error; with 0 it works.
const FILTERED: &str = r#"
import ctypes, os, struct, sys
error = int(sys.argv[1])
answer = 0x50000 | error if error else 0x7fff0000
# The number of the call; where it is that of openat2(2), the answer; otherwise it is permitted.
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, answer), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(22, 2, program, 0, 0) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
"#;

// Threat model: M119
#[test]
fn setfsmac_asks_nothing_of_what_is_mounted_below() {
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: this machine has no FUSE");
        return;
    }
    let below_mount = |tree: &Tree, openat2: &str, options: &[&str]| {
        let file = tree.specification("ROOT(/.*)? biba/low\n");
        // The mounts vanish with the mount namespace of this command.
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec"]);
        command.arg(r#"python3 -I -S -c "$1" "$2"; shift 2; exec "$@""#);
        command.args(["sh", DEAD]).arg(tree.path("b/mount"));
        command.args(["python3", "-I", "-S", "-c", FILTERED, openat2]);
        command.arg(env!("CARGO_BIN_EXE_setfsmac")).args(options);
        command.args(["-f", &file, &tree.root()]).output().unwrap()
    };
    // With openat2(2), and where a filter of system calls refuses it by EPERM and ENOSYS.
    for openat2 in ["0", "1", "38"] {
        let tree = Tree::on(Path::new("/dev/shm"));
        let output = below_mount(&tree, openat2, &["-x"]);
        assert!(output.status.success(), "{openat2}: {output:?}");
        assert_eq!(tree.label("c/z").as_deref(), Some("biba/low"));
        assert_eq!(tree.label("b/mount"), None);
    }
    // The twin: without `-x`, setfsmac enters the mount and asks the dead file system.
    let tree = Tree::on(Path::new("/dev/shm"));
    let output = below_mount(&tree, "0", &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/tree/b/mount: "), "{said}");
}

#[test]
fn a_run_goes_on_from_its_checkpoint() {
    for tree in Tree::each() {
        let file = tree.specification("ROOT(/.*)? biba/low\n");
        let checkpoint = tree.folder.path().join("checkpoint");
        let name = checkpoint.display().to_string();
        let output = with_proc(&tree, &["-e", "--checkpoint", &name, "-f", &file]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(tree.label("a/x").as_deref(), Some("biba/low"));
        assert_eq!(tree.label("c/z"), None);
        // Shows whether the second run visits it again.
        tree.set("a/x", "biba/high");
        let output = with_proc(&tree, &["--checkpoint", &name, "-f", &file]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(tree.label("a/x").as_deref(), Some("biba/high"));
        assert_eq!(tree.label("c/z").as_deref(), Some("biba/low"));
        assert!(!checkpoint.exists());
        let output = with_proc(&tree, &["--checkpoint", &name, "-f", &file]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(tree.label("a/x").as_deref(), Some("biba/low"));
    }
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let tree = Tree::on(Path::new("/dev/shm"));
    let checkpoint = tree.folder.path().join("checkpoint");
    let name = checkpoint.display().to_string();
    let file = tree.specification("ROOT(/.*)? biba/low\n");
    with_proc(&tree, &["-e", "--checkpoint", &name, "-f", &file]);
    let before = fs::read(&checkpoint).unwrap();
    let file = tree.specification("ROOT(/.*)? biba/high\n");
    let said = fails(
        "setfsmac",
        &["--checkpoint", &name, "-f", &file, &tree.root()],
    );
    assert!(said.contains("other specifications"), "{said}");
    assert_eq!(fs::read(&checkpoint).unwrap(), before);
    fs::write(&checkpoint, "{}").unwrap();
    let said = fails(
        "setfsmac",
        &["--checkpoint", &name, "-f", &file, &tree.root()],
    );
    assert!(said.contains("is not a checkpoint"), "{said}");
    assert_eq!(tree.label("c/z"), None);
}

#[test]
fn labels_of_processes_are_printed_and_none_is_made_up() {
    let own = std::process::id().to_string();
    for arguments in [&["-l", "?none_such"][..], &["-l", "?none_such", "-p", &own]] {
        assert_eq!(succeeds("getpmac", arguments), "-\n");
    }
    let printed = succeeds("getpmac", &["-l", "?none_such", "-p", "1", "--json"]);
    assert_eq!(printed, "{\"label\":null,\"pid\":1}\n");
    let said = fails("getpmac", &["-l", "none_such"]);
    assert!(said.contains("no element `none_such`"), "{said}");
    let said = fails("getpmac", &["-p", "2147483647"]);
    assert!(said.contains("no process 2147483647"), "{said}");
}

#[test]
fn setpmac_runs_nothing_without_the_label() {
    let said = fails("setpmac", &["none_such/low", "/bin/echo", "ran"]);
    assert!(said.contains("none_such/low: no module"), "{said}");
    let output = run("setpmac", &["none_such/low", "/bin/echo", "ran"]);
    assert!(output.stdout.is_empty());
    let said = fails("setpmac", &["none_such", "/bin/true"]);
    assert!(said.contains("has no value"), "{said}");
}
