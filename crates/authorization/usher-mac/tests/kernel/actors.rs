//! Processes that do what a test asks for (actor.py), and labels of files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program of actors, compiled: it begins many times.
fn acting() -> &'static Path {
    const SCRIPT: &str = concat!(
        include_str!("../../../../protection/usher-ipsec/tests/world/ring.py"),
        include_str!("../label_acts.py"),
        include_str!("../object_acts.py"),
        include_str!("../lowering_acts.py"),
        include_str!("../packet_acts.py"),
        include_str!("../interface_acts.py"),
        include_str!("../attack_acts.py"),
        include_str!("../process_acts.py"),
        include_str!("../service_acts.py"),
        include_str!("../passing_acts.py"),
        include_str!("../host_acts.py"),
        include_str!("../actor.py")
    );
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let (script, compiled) = (folder.join("actor.py"), folder.join("actor.pyc"));
        fs::write(&script, SCRIPT).unwrap();
        let compile = "import py_compile, sys; py_compile.compile(*sys.argv[1:], doraise=True)";
        let mut python = python();
        python.args(["-c", compile]).args([&script, &compiled]);
        assert!(python.status().unwrap().success());
        compiled
    })
}

/// Python without the modules of sites, which take longer to import than most acts.
pub(crate) fn python() -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-I", "-S"]);
    command
}

/// The actor, as this user.
pub(crate) fn actor(uid: u32, acts: &[String]) -> Command {
    let mut command = python();
    command.arg(acting());
    command.args([uid.to_string(), uid.to_string(), String::new()]);
    command.args(acts);
    command
}

/// The results of these acts by this user: `act result`.
pub(crate) fn act(uid: u32, acts: &[String]) -> Vec<String> {
    let output = actor(uid, acts).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<String> = lines.lines().map(Into::into).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(lines.len(), acts.len(), "{lines:?} {errors}");
    lines
}

pub(crate) fn on(name: &str, path: &Path) -> String {
    format!("{name}:{}", path.display())
}

pub(crate) fn onto(name: &str, path: &Path, other: &Path) -> String {
    format!("{name}:{}:{}", path.display(), other.display())
}

/// Each act with this result.
pub(crate) fn all(acts: &[String], result: &str) -> Vec<String> {
    let names = acts.iter().map(|act| act.split(':').next().unwrap());
    names.map(|name| format!("{name} {result}")).collect()
}

/// Each act with its result; all by one process of root.
pub(crate) fn expect(cases: &[(String, &str)]) {
    let acts: Vec<String> = cases.iter().map(|(act, _)| act.clone()).collect();
    let expected = cases.iter().map(|(act, result)| {
        let name = act.split(':').next().unwrap();
        format!("{act}: {name} {result}")
    });
    let results = acts.iter().zip(act(0, &acts));
    let results: Vec<String> = results
        .map(|(act, result)| format!("{act}: {result}"))
        .collect();
    assert_eq!(results, expected.collect::<Vec<_>>());
}

/// Root sets the label of a file.
pub(crate) fn set_label(path: &Path, label: &str) {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "security.bpf.mac", label.as_bytes(), flags).unwrap();
}
