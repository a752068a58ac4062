//! Ways to files that the module `test` opens for processes with the label `closed` only.

use crate::labels::Labels;
use crate::*;

use super::{Actor, attempt};

/// Acts of any user on a program with the label `closed`, and their results without that label.
const WAYS: [(&str, &str); 26] = [
    ("read", "EACCES"),
    ("write", "EACCES"),
    ("append", "EACCES"),
    ("mapped", "EACCES"),
    ("made_executable", "EACCES"),
    ("execute", "EACCES"),
    ("execute_descriptor", "EACCES"),
    ("by_memfd", "EACCES"),
    ("by_loader", "EACCES"),
    ("by_openat2", "EACCES"),
    ("through_proc", "EACCES"),
    ("from_its_folder", "EACCES"),
    ("by_symlink", "EACCES"),
    ("by_ring", "EACCES"),
    ("by_polled_ring", "EACCES"),
    ("stat", "EACCES"),
    ("stat_of_a_name", "EACCES"),
    ("stat_by_ring", "EACCES"),
    ("in_a_namespace", "EACCES"),
    ("by_another_mount", "EACCES"),
    ("by_cloned_tree", "EACCES"),
    ("by_an_overlay", "EACCES"),
    ("in_another_root", "EACCES"),
    ("in_thread:read", "EACCES"),
    ("in_child:read", "EACCES"),
    // A handle is a name only.
    ("handle_of", "ok"),
];

/// Acts that root alone can do, with all capabilities.
const WAYS_OF_ROOT: [(&str, &str); 3] = [
    ("by_handle", "EACCES"),
    ("given_by_fanotify", "EACCES"),
    ("account_to", "EACCES"),
];

/// Ways to go on with an open file, by a process that had the label when it opened the file and has
/// since given it up.
const HELD: [(&str, &str); 8] = [
    ("read", "EACCES"),
    ("sendfile", "EACCES"),
    ("splice", "EACCES"),
    ("copied", "EACCES"),
    ("ring", "EACCES"),
    ("anew", "EACCES"),
    // Not stopped: mapped memory is read without a call, and this module does not decide about mappings.
    ("mapping", "ok"),
    ("mapped", "ok"),
];

/// A copy of a program that every user may read, write and execute unless its label forbids it.
fn copy(of: &str, root: &mut Actor, path: PathBuf, label: &str) -> PathBuf {
    fs::copy(of, &path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    root.does(&format!("label_file:{}:test/{label}", path.display()), "ok");
    path
}

/// A program with this label that ends at once.
fn program(root: &mut Actor, path: PathBuf, label: &str) -> PathBuf {
    copy("/bin/true", root, path, label)
}

// Threat model: M45, M46, M93, M94, M95, M105, M106, M107
pub(super) fn no_way_to_a_labelled_file_evades_its_label(labels: &mut Labels) {
    let user = labels.world.user;
    let mut roots = [Actor::labelled(0, "closed"), Actor::start(0)];
    let mut users = [Actor::labelled(user, "closed"), Actor::start(user)];
    let closed = program(&mut roots[1], labels.path("closed"), "closed");
    for (way, result) in WAYS {
        attempt(&mut users, [(on(way, &closed).as_str(), result)]);
    }
    let script = labels.world.path("script");
    let more = [
        onto("as_interpreter", &closed, &script),
        format!("by_attributes_of_proc:{}:test/closed", closed.display()),
        format!("by_other_attributes:{}:test/closed", closed.display()),
    ];
    let more = more.iter().map(|act| (act.as_str(), "EACCES"));
    attempt(&mut users, more);
    let accounts = program(&mut roots[1], labels.path("accounts"), "closed");
    for (way, result) in WAYS_OF_ROOT {
        attempt(&mut roots, [(on(way, &accounts).as_str(), result)]);
    }
    let [_, root] = &mut roots;
    root.does(&on("changed_while_read", &closed), "ok");
    users[1].does("forks_race:5", "ok");
    keeps_what_it_has(&mut users[1], &closed);
    names_do_not_matter(labels, root, &mut users[1], &closed);
    labels_change_only_as_permitted(labels, root);
    set_uid_programs(labels, root, &mut users);
    overlays(labels, root, &mut users);
    foreign_file_systems(labels, root, &mut users);
}

/// A file stays open when its process gives up the label, and the module is asked about its use.
fn keeps_what_it_has(actor: &mut Actor, closed: &Path) {
    for (way, result) in HELD {
        actor.does(&format!("held:{way}:{}", closed.display()), result);
    }
    // Not stopped.
    actor.does(&on("by_shared_memory", closed), "ok");
}

/// A program that becomes root keeps the label.
fn set_uid_programs(labels: &Labels, root: &mut Actor, users: &mut [Actor; 2]) {
    let closed = copy("/bin/cat", root, labels.path("to_root"), "closed");
    let program = copy("/bin/cat", root, labels.path("as_root"), "plain");
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    let reads = onto("after_exec", &program, &closed);
    attempt(users, [(reads.as_str(), "EACCES")]);
}

fn names_do_not_matter(labels: &Labels, root: &mut Actor, refused: &mut Actor, closed: &Path) {
    let plain = program(root, labels.path("plain"), "plain");
    let exchange = onto("exchange", closed, &plain);
    let reads = [on("read", closed), on("read", &plain)];
    for results in [["EACCES", "ok"], ["ok", "EACCES"], ["EACCES", "ok"]] {
        for (read, result) in reads.iter().zip(results) {
            refused.does(read, result);
        }
        root.does(&exchange, "ok");
    }
    root.does(&exchange, "ok");
}

fn labels_change_only_as_permitted(labels: &Labels, root: &mut Actor) {
    let [plain, stays] =
        ["plain", "stays"].map(|name| program(root, labels.path(&format!("of_{name}")), name));
    let own = program(root, labels.path("own"), "plain");
    chown(&own, Some(labels.world.user), None).unwrap();
    let mut owner = Actor::start(labels.world.user);
    for way in [
        "label_file",
        "label_again",
        "label_by_ring",
        "label_by_descriptor",
        "label_by_proc",
        "label_at",
    ] {
        let to = |path: &Path, name: &str| format!("{way}:{}:test/{name}", path.display());
        root.does(&to(&plain, "other"), "ok");
        root.does(&to(&plain, "forbid"), "EACCES");
        root.does(&to(&stays, "other"), "EPERM");
        root.does(&to(&own, "other"), "ok");
        owner.does(&to(&own, "plain"), "EPERM");
    }
    for way in ["unlabel_file", "unlabel_by_descriptor", "unlabel_at"] {
        root.does(&on(way, &plain), "EPERM");
        // An element of no module in force.
        root.does(&format!("label_file:{}:absent/x", plain.display()), "ok");
        root.does(&on(way, &plain), "ok");
        root.does(&format!("label_file:{}:test/plain", plain.display()), "ok");
        owner.does(&on(way, &own), "EPERM");
    }
    // All capabilities of a user namespace.
    let own = own.display();
    let other = format!("label_file_in_a_namespace:{own}:test/other");
    owner.does(&other, "EPERM");
    root.does(&other.replace("_in_a_namespace", ""), "ok");
    owner.does("label_in_a_namespace:test/forbid", "EACCES");
    owner.does("label_in_a_namespace:test/plain", "ok");
    // A file system that the owner mounts is not multilabel.
    owner.does("own_file_system:test/closed", "ok");
    let pin = labels.world.pins.join("in_force");
    root.does(&on("pinned", &pin), "ok");
    owner.does(&on("pinned", &pin), "EACCES");
    owner.does(&on("pinned_in_a_namespace", &pin), "EACCES");
    root.does("load_program", "ok");
    owner.does("load_program", "EPERM");
    owner.does("load_program_in_a_namespace", "EPERM");
}

/// The label of a file on an overlay is that of its layer, and a copy-up keeps it.
fn overlays(labels: &Labels, root: &mut Actor, users: &mut [Actor; 2]) {
    let folder = |name: &str| {
        let path = labels.path(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        root.does(&format!("label_file:{}:test/plain", path.display()), "ok");
        path
    };
    let [lower, upper, work] = ["lower", "upper", "work"].map(folder);
    for name in ["changed", "kept"] {
        program(root, lower.join(name), "closed");
    }
    let merged = labels.world.path("merged");
    fs::create_dir(&merged).unwrap();
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "overlay", "-o", &layers]);
    assert!(mount.arg(&merged).status().unwrap().success());
    let mut both = |path: &Path| {
        for way in ["read", "write", "mapped", "by_ring"] {
            let act = on(way, path);
            attempt(users, [(act.as_str(), "EACCES")]);
        }
    };
    // Looks for names only: not every process may see the attributes of these files.
    let is_copied = |name: &str| {
        let mut names = fs::read_dir(&upper).unwrap();
        names.any(|entry| entry.unwrap().file_name() == name)
    };
    assert!(!is_copied("changed"));
    both(&merged.join("changed"));
    // `changed` was opened for writing by a process with the label, so it is in the upper layer.
    assert!(is_copied("changed"));
    both(&upper.join("changed"));
    // A change of the mode copies the file, and so reads it.
    let kept = merged.join("kept");
    let mut roots = [Actor::labelled(0, "closed"), Actor::labelled(0, "other")];
    roots[1].does(&on("chmod", &kept), "EACCES");
    assert!(!is_copied("kept"));
    roots[0].does(&on("chmod", &kept), "ok");
    assert!(is_copied("kept"));
    both(&kept);
    drop(roots);
    let unmounted = Command::new("umount").arg(&merged).status().unwrap();
    assert!(unmounted.success());
}

/// A label of this length, which has elements of modules that are not there.
fn text_of(length: usize) -> String {
    let mut text = String::from("test/plain");
    for module in 'a'.. {
        let rest = length - text.len();
        if rest == 0 {
            break;
        }
        let value = (rest - 3).min(if rest > 255 { 200 } else { 255 });
        text.push_str(&format!(",{module}/{}", "v".repeat(value)));
    }
    assert_eq!(text.len(), length);
    text
}

/// A file system whose files come with attributes. These count once the policy names the file system, and
/// only if they are labels.
fn foreign_file_systems(labels: &mut Labels, root: &mut Actor, users: &mut [Actor; 2]) {
    let disk = labels.world.path("disk");
    fs::create_dir(&disk).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "tmpfs"]).arg(&disk);
    assert!(mount.status().unwrap().success());
    fs::set_permissions(&disk, Permissions::from_mode(0o1777)).unwrap();
    let nine = (0..8).fold("test/plain".to_owned(), |text, n| format!("{text},a{n}/x"));
    let prepared = [
        ("plain", "test/plain".to_owned(), "ok"),
        ("closed", "test/closed".to_owned(), "EACCES"),
        ("longest", text_of(1024), "ok"),
        ("longer", text_of(1025), "EACCES"),
        ("empty", String::new(), "EACCES"),
        ("no_label", "anything".to_owned(), "EACCES"),
        ("twice", "test/plain,test/plain".to_owned(), "EACCES"),
        ("nine", nine, "EACCES"),
        ("capital", "TEST/plain".to_owned(), "EACCES"),
        ("spaced", "test/plain ".to_owned(), "EACCES"),
    ];
    let label = |path: &Path, text: &str| format!("label_file:{}:{text}", path.display());
    root.does(&label(&disk, "test/plain"), "ok");
    for (name, text, _) in &prepared {
        let path = disk.join(name);
        fs::write(&path, "text").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        root.does(&label(&path, text), "ok");
        users[1].does(&on("read", &path), "ok");
    }
    let devices = [&labels.mounted, &disk].map(|path| {
        let device = std::os::unix::fs::MetadataExt::dev(&fs::metadata(path).unwrap());
        (libc::major(device), libc::minor(device))
    });
    labels
        .world
        .framework()
        .set_multilabel(&devices.into())
        .unwrap();
    // The folder's label is known when somebody has opened it.
    fs::read_dir(&disk).unwrap();
    for (name, text, result) in &prepared {
        let path = disk.join(name);
        users[1].does(&on("read", &path), result);
        // A text that is no label cannot be set either.
        let is_label = *result == "ok" || *name == "closed";
        let set = if is_label { "ok" } else { "EINVAL" };
        root.does(&label(&path, text), set);
    }
    let closed = disk.join("closed");
    users[0].does(&on("read", &closed), "ok");
    let unmounted = Command::new("umount").arg(&disk).status().unwrap();
    assert!(unmounted.success());
}
